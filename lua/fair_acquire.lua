-- fair_acquire: take the lock for one owner in turn, or join its queue.
--
-- KEYS[1]  lock       hash: owner -> hold count
-- KEYS[2]  queue      list of tickets, the next one first
-- KEYS[3]  timeouts   sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  channel    base: a waiter listens at this, ':' and its ticket
-- ARGV[1]  owner      "<client uuid>:<number>", a number never used before
-- ARGV[2]  lease_ms   integer > 0; how long the hold lives unless renewed
-- ARGV[3]  ticket     the waiter's name in the queue, mostly the owner
-- ARGV[4]  waiter_ms  integer; how long its place lives unless refreshed by asking again; 0: never queue
-- ARGV[5]  queued     '0': this ticket has no place yet; '1': it has one; '2': its place is known to be lost
-- ARGV[6]  grace_ms   integer; how long at most a place lives on whose waiter does not listen: see prelude
-- ARGV[7…n] served    tickets that need their places no longer: their process has had the lock, and served them itself
--
-- Returns  nil        taken, with a count of one; the ticket is out of the queue
--          n >= 0     not now; asking again is worth it after n ms
--          -1         not now; somebody holds it without a lease
--          -3         not now, and the place is lost: '2' gets it back
--          {n, t}     n as above, and the place is new, directly behind that of t; '' if it is the first
--
-- Keeps    what lock_acquire keeps; the order of waiters that listen, or ask within the grace; a later timeout as it
--          is, unless Redisson was the reason for it and is not any more; the place, if the lock cannot be taken; of the
--          dead in front those after the first 500, for the next call; run twice it is as if only the second had run
local owner, lease_ms, ticket = ARGV[1], ARGV[2], ARGV[3]
local waiter_ms, queued, grace_ms = tonumber(ARGV[4]), ARGV[5] ~= '0', tonumber(ARGV[6])

-- How long the keys outlive the last place.
local KEEP = 3600000

-- First, because they refuse keys of another type.
local mine = redis.call('hexists', KEYS[1], owner) == 1
local timeout = tonumber(redis.call('zscore', KEYS[3], ticket))
local head = redis.call('lindex', KEYS[2], 0)

if #ARGV > 6 then
  remove_places(unpack(ARGV, 7))
  head = redis.call('lindex', KEYS[2], 0)
end

local left_ms = redis.call('pttl', KEYS[1])
local free = left_ms == -2
local now, head_dies_at
local pause_ms = 1
if not mine then
  if not free and redis.call('hexists', KEYS[1], 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
  end
  now = now_ms()
  local silent
  local to_purge = MOST
  while head and head ~= ticket do
    head_dies_at = dies_at(head)
    if head_dies_at > now then
      break
    end
    if head_dies_at % 1 == UNHEARD then
      -- Nobody waits for its place while the lock is held.
      if not free or outlives_its_grace(head, head_dies_at, now, grace_ms) then
        pause_ms = 500
        break
      end
    else
      if silent == nil then
        local latest = tonumber(redis.call('zrange', KEYS[3], -1, -1, 'withscores')[2] or 0)
        silent = latest <= now and redis.call('llen', KEYS[2]) > 1
      end
      -- None of them showed a sign of life: the server may have been stopped, or all of them. Whoever lives asks within a
      -- third of its lease. The head gets that time once, and they keep their order.
      if silent and head_dies_at % 1 ~= SILENT then
        head_dies_at = now + math.ceil((waiter_ms > 0 and waiter_ms or 10000) / 3) + SILENT
        set_timeout(head, head_dies_at)
        redis.call('pexpire', KEYS[3], KEEP)
        break
      end
      silent = false
    end
    if to_purge == 0 then
      break
    end
    to_purge = to_purge - 1
    head = remove(head)
  end
end

-- A timeout that Redisson may lower has the time of its last refresh in its fraction, in steps of 4 s: 1/1024 to 1023/1024.
local STEP = 1 / 1024
local mark = now and (math.floor(now / 4000) % 1023 + 1) * STEP

local place = head == ticket or timeout
-- In different numbers where one of the two keys was evicted or deleted: the place may be there without the
-- timeout, or the other way round.
if not mine and head ~= ticket and (queued or timeout) then
  local timed, places = redis.call('zcard', KEYS[3]), redis.call('llen', KEYS[2])
  if timed ~= places then
    local all = redis.call('lrange', KEYS[2], 0, -1)
    place = false
    for _, other in ipairs(all) do
      place = place or other == ticket
    end
    -- Redisson does not purge a place without a timeout, nor finds its own.
    if timed < places and waiter_ms > 0 then
      local until_then = string.format('%.10f', now + waiter_ms + REDISSON + mark)
      for from = 1, places, 500 do
        local scores = {}
        for i = from, math.min(from + 499, places) do
          scores[#scores + 1] = until_then
          scores[#scores + 1] = all[i]
        end
        redis.call('zadd', KEYS[3], 'nx', unpack(scores))
      end
      timeout = timeout or place and tonumber(until_then)
    end
  end
end

-- Only heads are purged: one that comes back after all was next.
local lost = queued and not place and not timeout
if mine or free and (not head or head == ticket or lost and ARGV[5] == '2') then
  redis.call('hset', KEYS[1], owner, 1)
  local kept = redis.pcall('pexpire', KEYS[1], lease_ms)
  if type(kept) == 'table' then
    redis.call('hdel', KEYS[1], owner)
    return kept
  end
  if timeout or place then
    redis.call('lrem', KEYS[2], 1, ticket)
    redis.call('zrem', KEYS[3], ticket)
  end
  local next = head and redis.call('lindex', KEYS[2], 0)
  -- It listens by now perhaps, and cannot take the lock within its grace any more.
  if next and now and not string.find(next, OURS) and dies_at(next) % 1 == UNHEARD then
    set_timeout(next, now + REDISSON)
  end
  -- The next one sleeps for up to 5 s without asking, and would sleep through the end of a shorter lease.
  if next and tonumber(lease_ms) < 5000 then
    redis.pcall('publish', KEYS[4] .. ':' .. next, '0')
  end
  return nil
end

local behind
local function busy(ms)
  return behind and {ms, behind} or ms
end
if waiter_ms > 0 then
  -- It may also be that the waiter has left, and this question was sent before and comes late. Who still waits asks again.
  if lost and ARGV[5] == '1' then
    return -3
  end
  -- The same timeout as if refreshed now.
  local function refreshed(at)
    local steps = (mark / STEP - math.floor(at % 1 / STEP)) % 1023
    return math.max(math.floor(at) + steps * 4000, now + waiter_ms) + mark
  end
  local dies_at = now + waiter_ms
  if timeout then
    if timeout % 1 < STEP then
      dies_at = math.max(dies_at, math.floor(timeout))
    elseif head ~= ticket then
      dies_at = refreshed(timeout)
    end
  elseif not place and not lost then
    local tail = redis.call('lindex', KEYS[2], -1)
    behind = tail or ''
    local tail_dies_at = tonumber(tail and redis.call('zscore', KEYS[3], tail) or 0)
    -- Only waiters with a longer limit live that long, mostly Redisson's. When one of them takes the lock it lowers all
    -- behind it by its own wait, so we add to its sum, once, what the first of them may have waited for already. The mark
    -- goes over to those behind us, Redisson's too: they have it in their sums.
    if tail_dies_at % 1 >= STEP then
      dies_at = refreshed(tail_dies_at)
    elseif tail_dies_at > dies_at then
      dies_at = math.floor(tail_dies_at) + waiter_ms + REDISSON + mark
    end
  end
  if not place and not lost then
    redis.call('rpush', KEYS[2], ticket)
  elseif not place then
    -- Those of one client know by their numbers who came first.
    local client, number = string.match(ticket, '^(.*:)(%d+)$')
    local before
    for _, other in ipairs(client and redis.call('lrange', KEYS[2], 0, 255) or {}) do
      local its_client, its_number = string.match(other, '^(.*:)(%d+)$')
      if its_client ~= client or tonumber(its_number) > tonumber(number) then
        break
      end
      before = other
    end
    if before then
      redis.call('linsert', KEYS[2], 'after', before, ticket)
    else
      redis.call('lpush', KEYS[2], ticket)
    end
  end
  -- The timeout after the place: a place without a timeout is purged, the opposite could last.
  -- What a process that was killed leaves behind goes an hour after its last neighbour.
  local keep_ms = string.format('%.0f', waiter_ms + KEEP)
  redis.call('pexpire', KEYS[2], keep_ms)
  redis.call('zadd', KEYS[3], string.format('%.10f', dies_at), ticket)
  redis.call('pexpire', KEYS[3], keep_ms)
end

if not free then
  return busy(left_ms)
end
-- Nobody ahead of it can lower its timeout any more. Redisson's cannot refresh it either.
local most_ms = string.find(head, OURS) and waiter_ms or REDISSON
if waiter_ms > 0 and head_dies_at % 1 >= STEP and head_dies_at > now + most_ms then
  redis.call('zadd', KEYS[3], string.format('%.0f', now + most_ms), head)
end
-- Its wake-up may be lost, or be on its way.
local _, dead_at = notify(head, grace_ms, now, ticket, waiter_ms == 0)
return busy(math.max(pause_ms, dead_at - now))
