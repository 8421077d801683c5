-- fair: which places in the queue count, and who is next. Precedes the scripts fair_*.
--
-- KEYS[1]  lock       hash: owner -> hold count
-- KEYS[2]  queue      Redisson's list of tickets, the next one first
-- KEYS[3]  timeouts   Redisson's sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  alive      redlatch's sorted set: ticket of redlatch -> epoch ms until which it counts as alive; '' -> the time
--                     that the last extension gave (see below)
-- KEYS[5]  channel    the beginning of the waiters' channels: a waiter listens at `<this>:<ticket>`
-- ARGV[1]  waiter_ms  integer > 0; how long a place of ours outlives its last sign of life

-- Each place adds this to the timeouts of the places behind it, as in Redisson (`fairLockWaitTimeout`).
local WAIT = 300000

local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local waiter_ms = tonumber(ARGV[1])

-- These reads come first: if a key holds another type, they fail before anything is written.
local places, timed = redis.call('llen', KEYS[2]), redis.call('zcard', KEYS[3])
local latest = redis.call('zrange', KEYS[4], -1, -1, 'withscores')[2]

if places == 0 and latest then
  redis.call('del', KEYS[4])
  latest = nil
end

-- The numbers differ if a key was evicted or deleted, or a script failed half-way. A place without a timeout gets one,
-- since Redisson would otherwise never remove the place. A timeout without a place is removed, and so is a repeated ticket.
if places ~= timed then
  local seen, last = {}, now
  for _, ticket in ipairs(redis.call('lrange', KEYS[2], 0, -1)) do
    if seen[ticket] then
      redis.call('lrem', KEYS[2], -1, ticket)
    end
    seen[ticket] = true
    last = tonumber(redis.call('zscore', KEYS[3], ticket) or last + WAIT)
    redis.call('zadd', KEYS[3], last, ticket)
  end
  for _, ticket in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do
    if not seen[ticket] then
      redis.call('zrem', KEYS[3], ticket)
      redis.call('zrem', KEYS[4], ticket)
    end
  end
end

-- Every client refreshes its places each third of `waiter_ms`, which sets their scores to `now + waiter_ms`. If the highest
-- score is below `now + waiter_ms / 2`, even the latest refresh was over `waiter_ms / 2` ago: Redis was unreachable, or all
-- waiters died. An outage must not cost places, so every place lives for `waiter_ms` more. There is no second extension
-- before somebody has refreshed again. The extension sets the score of every place, and of the member '', to
-- `now + waiter_ms - 1`. A refresh gives a higher score, even in the same millisecond. So if the score of '' is still the
-- highest, nobody has refreshed since the extension.
if latest and tonumber(latest) < now + waiter_ms / 2 and redis.call('zscore', KEYS[4], '') ~= latest then
  -- ZREM needs no memory, and after a script's first write Redis no longer rejects writes for lack of memory: so the ZADDs
  -- below succeed.
  redis.call('zrem', KEYS[4], '')
  redis.call('zadd', KEYS[4], 0, '')
  for _, ticket in ipairs(redis.call('zrange', KEYS[4], 0, -1)) do
    redis.call('zadd', KEYS[4], now + waiter_ms - 1, ticket)
  end
end

-- Keys that a killed process leaves behind expire an hour after anybody last joined or refreshed.
local function keep()
  redis.call('pexpire', KEYS[2], 3600000)
  redis.call('pexpire', KEYS[3], 3600000)
  redis.call('pexpire', KEYS[4], 3600000)
end

-- Removes the places in `gone` (ticket -> true), and lowers the timeouts of the places behind them, as Redisson does. One ZADD
-- lowers up to 500 timeouts, since a call for each would take most of the script's time. When no place of ours is left, the
-- TTLs are removed: Redisson's clients would not extend them, and their places must not expire.
local function remove(gone)
  local before, timeouts, lowered = 0, {}, {}
  local all = redis.call('zrange', KEYS[3], 0, -1, 'withscores')
  for i = 1, #all, 2 do
    timeouts[all[i]] = all[i + 1]
  end
  for _, ticket in ipairs(redis.call('lrange', KEYS[2], 0, -1)) do
    if gone[ticket] then
      before = before + 1
      redis.call('lrem', KEYS[2], 1, ticket)
    elseif before > 0 then
      lowered[#lowered + 1] = (timeouts[ticket] or now) - WAIT * before
      lowered[#lowered + 1] = ticket
    end
  end
  for ticket in pairs(gone) do
    redis.call('zrem', KEYS[3], ticket)
    redis.call('zrem', KEYS[4], ticket)
  end
  for i = 1, #lowered, 1000 do
    redis.call('zadd', KEYS[3], unpack(lowered, i, math.min(i + 999, #lowered)))
  end
  if redis.call('zcard', KEYS[4]) == (redis.call('zscore', KEYS[4], '') and 1 or 0) then
    redis.call('persist', KEYS[2])
    redis.call('persist', KEYS[3])
  end
end

-- The first living waiter. First removes dead waiters: ours anywhere in the queue, Redisson's only at the head of the queue,
-- where Redisson removes them too.
local function first()
  local dead = redis.call('zrange', KEYS[4], '-inf', now, 'byscore')
  if #dead > 0 then
    local gone = {}
    for _, ticket in ipairs(dead) do
      gone[ticket] = true
    end
    remove(gone)
  end
  while true do
    local head = redis.call('lindex', KEYS[2], 0)
    if not head or redis.call('zscore', KEYS[4], head) or tonumber(redis.call('zscore', KEYS[3], head) or 0) > now then
      return head
    end
    redis.call('lpop', KEYS[2])
    redis.call('zrem', KEYS[3], head)
  end
end

-- Notifies the waiter `head`, and returns how many processes received the message: 0 without a waiter or without rights on the
-- channel.
local function notify(head)
  local heard = head and redis.pcall('publish', KEYS[5] .. ':' .. head, '0')
  return type(heard) == 'number' and heard or 0
end

