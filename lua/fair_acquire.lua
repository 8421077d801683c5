-- fair_acquire: take the lock for one owner in turn, or stand in its queue.
--
-- KEYS[1]  lock       hash: owner -> hold count
-- KEYS[2]  queue      list of tickets, the next one first
-- KEYS[3]  timeouts   sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  channel    base: a waiter listens at this, ':' and its ticket
-- ARGV[1]  owner      "<client uuid>:<number>", a number never used before
-- ARGV[2]  lease_ms   integer > 0; how long the hold lives unless renewed
-- ARGV[3]  ticket     the waiter's name in the queue, mostly the owner
-- ARGV[4]  waiter_ms  integer; how long its place lives unless refreshed by asking again; 0: never queue
-- ARGV[5]  stood      '1' if this ticket has stood in the queue before, else '0'
--
-- Returns  nil        taken, with a count of one; the ticket is out of the queue
--          n >= 0     not now; asking again is worth it after n ms
--          -1         not now; somebody holds it without a lease
--
-- Keeps    what lock_acquire keeps; the order of live waiters; a later timeout as it is; the place, if the
--          lock cannot be taken; run twice it is as if only the second had run
local lock, queue, timeouts, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, lease_ms, ticket = ARGV[1], ARGV[2], ARGV[3]
local waiter_ms, stood = tonumber(ARGV[4]), ARGV[5] == '1'

-- First, because they refuse keys of another type.
local mine = redis.call('hexists', lock, owner) == 1
local timeout = redis.call('zscore', timeouts, ticket)
local head = redis.call('lindex', queue, 0)

local left_ms = redis.call('pttl', lock)
local free = left_ms == -2
local now, head_timeout
if not mine then
  if not free and redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
  end
  local time = redis.call('time')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  -- A head without a timeout is dead too: nothing else would ever end it.
  while head and head ~= ticket do
    head_timeout = tonumber(redis.call('zscore', timeouts, head) or 0)
    if head_timeout > now then
      break
    end
    redis.call('lpop', queue)
    redis.call('zrem', timeouts, head)
    head = redis.call('lindex', queue, 0)
  end
end

-- Only heads are purged: one that comes back after all was next.
local purged = stood and not timeout
if mine or free and (not head or head == ticket or purged) then
  redis.call('hset', lock, owner, 1)
  local kept = redis.pcall('pexpire', lock, lease_ms)
  if type(kept) == 'table' then
    redis.call('hdel', lock, owner)
    return kept
  end
  if timeout or head == ticket then
    redis.call('lrem', queue, 1, ticket)
    redis.call('zrem', timeouts, ticket)
  end
  return nil
end

if waiter_ms > 0 then
  local alive_until = now + waiter_ms
  local placed = head == ticket
  if timeout then
    alive_until = math.max(alive_until, tonumber(timeout))
    -- Timeouts without a place are left when the queue alone was evicted or deleted.
    if not placed and redis.call('zcard', timeouts) > redis.call('llen', queue) then
      for _, other in ipairs(redis.call('lrange', queue, 0, -1)) do
        placed = placed or other == ticket
      end
    else
      placed = true
    end
  end
  if not placed then
    if purged then
      redis.call('lpush', queue, ticket)
    else
      local tail = redis.call('lindex', queue, -1)
      local tail_timeout = tonumber(tail and redis.call('zscore', timeouts, tail) or 0)
      -- Only Redisson's waiters live that long. Each of them will lower all behind it by its own wait, so we add to
      -- its sum; half a millisecond marks a sum that has us in it, or it would grow with each of us for ever.
      if not timeout and tail_timeout > now + math.max(60000, waiter_ms) then
        alive_until = tail_timeout % 1 == 0 and tail_timeout + waiter_ms + 0.5 or tail_timeout
      end
      redis.call('rpush', queue, ticket)
    end
  end
  -- The timeout after the place: a place without a timeout is purged, the opposite would never heal.
  -- The keys outlive everybody who refreshes them, and not by more than an hour.
  local keep_ms = string.format('%.0f', waiter_ms + 3600000)
  redis.call('pexpire', queue, keep_ms)
  redis.call('zadd', timeouts, string.format('%.1f', alive_until), ticket)
  redis.call('pexpire', timeouts, keep_ms)
end

if not free then
  return left_ms
end
-- Its wake-up may be lost, or be on its way.
redis.pcall('publish', channel .. ':' .. head, '0')
return math.max(1, head_timeout - now)
