-- fair_acquire: take the lock in turn, or join its queue.
--
-- KEYS[1]  lock       hash: owner -> hold count
-- KEYS[2]  queue      list of tickets, the next one first
-- KEYS[3]  timeouts   sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  alive      sorted set: ticket of ours -> epoch ms until which it counts as alive
-- KEYS[5]  channel    base: a waiter listens at `<this>:<ticket>`
-- ARGV[1]  waiter_ms  integer > 0; how long a place of ours outlives its last sign of life
-- ARGV[2]  ticket     "<client uuid>:<number>", with a number that no other ticket has; names the owner, and its place in the
--                     queue
-- ARGV[3]  lease_ms   integer > 0; how long the hold lives unless renewed
-- ARGV[4]  place      'new': the ticket wants a place; 'has': it has one; 'last': it has one, and gives it up if the lock is
--                     free but somebody else is next, since its call ends soon; 'none': it wants none
--
-- Returns  nil        taken, with a count of one unless an earlier run took it; the ticket is out of the queue
--          n >= 0     not now; n ms until the lease of the holder runs out
--          -1         not now; somebody holds it without a lease
--          -2         not now; nobody holds it, and somebody else is next
--          -3         not now; the ticket had a place, and has lost it or given it up
--
-- Keeps    what lock_acquire keeps; the order of the living; the place, if the lock cannot be taken (except with 'last')
-- Twice    the second run finds the hold or the place of the first; it lengthens a shorter TTL and shortens none. A late request
--          with 'has' or 'last', whose ticket was released since, neither joins the queue nor takes the lock
-- Errors   as lock_acquire
local ticket, lease_ms, place = ARGV[2], ARGV[3], ARGV[4]

-- A count of 0: the owner has let go of the hold, which only keeps the name taken (lock_keep). So this request is late.
local count = redis.call('hget', KEYS[1], ticket)
local mine = count and count ~= '0'
local placed = redis.call('zscore', KEYS[3], ticket)
-- The ticket's place was removed: it was released, or counted as dead. This request may be a late copy, so it neither joins
-- again nor takes the lock; a client that still waits takes a new ticket.
if (place == 'has' or place == 'last') and not placed and not mine then
  return -3
end
local left_ms = redis.call('pttl', KEYS[1])
local wrong = not mine and left_ms ~= -2 and no_lock('lock')
if wrong then
  return wrong
end

-- This request is a sign of life, and must count before `first` removes the dead.
if placed then
  redis.call('zadd', KEYS[4], now + waiter_ms, ticket)
end
local head = first()
-- The ticket gets the lock if an earlier run took it (`mine`), or if the lock is free and nobody alive is ahead.
if mine or left_ms == -2 and (head or ticket) == ticket then
  if not mine then
    redis.call('hset', KEYS[1], ticket, 1)
  end
  -- A longer TTL stays: the owner may have locked again with a longer lease since the first run.
  if left_ms < tonumber(lease_ms) then
    -- Without a TTL the lock would never be free again, so a hold that gets none is removed.
    local kept = redis.pcall('pexpire', KEYS[1], lease_ms)
    if type(kept) == 'table' then
      redis.call('hdel', KEYS[1], ticket)
      return kept
    end
  end
  if placed then
    remove({[ticket] = true})
  end
  -- The next waiter sleeps for up to 5 s without asking, and would sleep through the end of a shorter
  -- lease, so it is told to look now.
  if tonumber(lease_ms) < 5000 then
    notify(redis.call('lindex', KEYS[2], 0))
  end
  return nil
end

-- The lock is free, another waiter is next, and this call is about to time out. Such a call leaves the queue at once. If it
-- stayed, it might become first too late to be notified and to ask. If the calls behind it have as little time, the lock could
-- stay free although calls wait (`LAST` in src/acquire/contender.rs). The next waiter is notified, since `first` may just have
-- removed dead places ahead of it.
if place == 'last' and left_ms == -2 then
  remove({[ticket] = true})
  notify(first())
  return -3
end
-- A second run finds the place of the first (`placed`) and adds none.
if place == 'new' and not placed then
  local last = redis.call('lindex', KEYS[2], -1)
  local ahead = last and tonumber(redis.call('zscore', KEYS[3], last)) or now + left_ms
  -- RPUSH comes last. If the script fails before it, only a timeout is left, which a later script removes. In the other order
  -- a place without a timeout could be left. A later script would give it one, and the place would stay until that timeout.
  redis.call('zadd', KEYS[3], ahead + WAIT, ticket)
  redis.call('zadd', KEYS[4], now + waiter_ms, ticket)
  redis.call('rpush', KEYS[2], ticket)
  keep()
end
return left_ms
