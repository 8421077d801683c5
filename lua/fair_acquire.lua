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
local now, head_dies_at
if not mine then
  if not free and redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
  end
  local time = redis.call('time')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  -- A head without a timeout is dead too: nothing else would ever end it.
  while head and head ~= ticket do
    head_dies_at = tonumber(redis.call('zscore', timeouts, head) or 0)
    if head_dies_at > now then
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
  -- The next one sleeps for up to 5 s without asking, and would sleep through the end of a shorter lease.
  local next = tonumber(lease_ms) < 5000 and redis.call('lindex', queue, 0)
  if next then
    redis.pcall('publish', channel .. ':' .. next, '0')
  end
  return nil
end

if waiter_ms > 0 then
  local place = head == ticket or timeout
  -- In different numbers where one of the two keys was evicted or deleted: the place may be there without the
  -- timeout, or the other way round.
  if head ~= ticket and (stood or timeout) and redis.call('zcard', timeouts) ~= redis.call('llen', queue) then
    place = false
    for _, other in ipairs(redis.call('lrange', queue, 0, -1)) do
      place = place or other == ticket
    end
  end
  local dies_at = now + waiter_ms
  if timeout then
    dies_at = math.max(dies_at, tonumber(timeout))
  elseif not place and not purged then
    local tail = redis.call('lindex', queue, -1)
    local tail_dies_at = tonumber(tail and redis.call('zscore', timeouts, tail) or 0)
    -- Only waiters with a longer patience live that long, mostly Redisson's. When one of them takes the lock it lowers all behind it by its own wait,
    -- so we add to its sum. Half a millisecond marks a sum with us in it: the next of us adds nothing, or it would
    -- grow with each of us and never shrink.
    if tail_dies_at > now + waiter_ms then
      dies_at = tail_dies_at % 1 == 0 and tail_dies_at + waiter_ms + 0.5 or tail_dies_at
    end
  end
  if not place then
    redis.call(purged and 'lpush' or 'rpush', queue, ticket)
  end
  -- The timeout after the place: a place without a timeout is purged, the opposite could last.
  -- What a process that was killed leaves behind goes an hour after its last neighbour.
  local keep_ms = string.format('%.0f', waiter_ms + 3600000)
  redis.call('pexpire', queue, keep_ms)
  redis.call('zadd', timeouts, string.format('%.1f', dies_at), ticket)
  redis.call('pexpire', timeouts, keep_ms)
end

if not free then
  return left_ms
end
-- Its wake-up may be lost, or be on its way.
redis.pcall('publish', channel .. ':' .. head, '0')
return math.max(1, head_dies_at - now)
