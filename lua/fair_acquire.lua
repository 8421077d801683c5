-- fair_acquire: take the lock in turn, or join its queue.
--
-- KEYS[1]  lock       hash: owner -> hold count
-- KEYS[2]  queue      list of tickets, the next one first
-- KEYS[3]  timeouts   sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  alive      sorted set: ticket of ours -> epoch ms until which it counts as alive
-- KEYS[5]  channel    base: a waiter listens at this, ':' and its ticket
-- ARGV[1]  waiter_ms  integer > 0; how long a place of ours outlives its last sign of life
-- ARGV[2]  ticket     "<client uuid>:<number>", a number never used before: the owner, and its place in the queue
-- ARGV[3]  lease_ms   integer > 0; how long the hold lives unless renewed
-- ARGV[4]  place      'new': it wants one; 'has': it has one; 'last': the same, and it gives that up if the lock is free
--                     and not its own, since it waits for a moment only; 'none': it wants none
--
-- Returns  nil        taken, with a count of one; the ticket is out of the queue
--          n >= 0     not now; n ms until the lease of the holder runs out
--          -1         not now; somebody holds it without a lease
--          -2         not now; nobody holds it, and somebody else is next
--          -3         not now; it had a place, and that is lost or given up
--
-- Keeps    what lock_acquire keeps; the order of the living; the place, if the lock cannot be taken; run twice it is as if
--          only the second had run; one that comes late with 'has' or 'last' neither joins nor takes
--          the lock
local ticket, lease_ms, place = ARGV[2], ARGV[3], ARGV[4]

local mine = redis.call('hexists', KEYS[1], ticket) == 1
local placed = redis.call('zscore', KEYS[3], ticket)
if (place == 'has' or place == 'last') and not placed and not mine then
  return -3
end
local left_ms = redis.call('pttl', KEYS[1])
local wrong = not mine and left_ms ~= -2 and no_lock('lock')
if wrong then
  return wrong
end

-- Before the dead are removed.
if placed then
  redis.call('zadd', KEYS[4], now + waiter_ms, ticket)
end
local head = first()
if mine or left_ms == -2 and (head or ticket) == ticket then
  redis.call('hset', KEYS[1], ticket, 1)
  local kept = redis.pcall('pexpire', KEYS[1], lease_ms)
  if type(kept) == 'table' then
    redis.call('hdel', KEYS[1], ticket)
    return kept
  end
  if placed then
    remove({[ticket] = true})
  end
  -- The next one sleeps for up to 5 s without asking, and would sleep through the end of a shorter lease.
  if tonumber(lease_ms) < 5000 then
    notify(redis.call('lindex', KEYS[2], 0))
  end
  return nil
end

if place == 'last' and left_ms == -2 then
  remove({[ticket] = true})
  notify(first())
  return -3
end
if place == 'new' and not placed then
  local last = redis.call('lindex', KEYS[2], -1)
  local ahead = last and tonumber(redis.call('zscore', KEYS[3], last)) or now + left_ms
  -- The place last: the others without it are removed, and it without them could stay.
  redis.call('zadd', KEYS[3], ahead + WAIT, ticket)
  redis.call('zadd', KEYS[4], now + waiter_ms, ticket)
  redis.call('rpush', KEYS[2], ticket)
  keep()
end
return left_ms
