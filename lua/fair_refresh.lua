-- fair_refresh: show a sign of life for all places of one client, and keep the queue moving.
--
-- KEYS[1]  lock       hash: owner -> hold count
-- KEYS[2]  queue      list of tickets, the next one first
-- KEYS[3]  timeouts   sorted set: ticket -> epoch ms from which it counts as dead
-- KEYS[4]  alive      sorted set: ticket of ours -> epoch ms until which it counts as alive
-- KEYS[5]  channel    base: a waiter listens at `<this>:<ticket>`
-- ARGV[1]  waiter_ms  integer > 0; how long a place of ours outlives its last sign of life
-- ARGV[2…n] tickets   the client's tickets that have a place
--
-- Returns  the tickets among these that have no place any more
--
-- Keeps    the lock, and the order of the living; if the lock is free, the dead are removed and the next waiter is notified
-- Twice    the second run makes no place, even if it is late
local lost = {}
-- The set of our places gets a TTL in any case. PEXPIRE needs no memory, and after this first write Redis accepts the ZADDs
-- below even if memory is short.
redis.call('pexpire', KEYS[4], 3600000)
-- Only a ticket that still has a place is refreshed: a late request must not revive a place that was released or removed.
for i, ticket in ipairs(ARGV) do
  if i > 1 and redis.call('zscore', KEYS[3], ticket) then
    redis.call('zadd', KEYS[4], now + waiter_ms, ticket)
  elseif i > 1 then
    lost[#lost + 1] = ticket
  end
end
-- The queue and its timeouts get a TTL only if a place of ours is in them.
if #lost < #ARGV - 1 then
  keep()
end

-- Redisson removes a place whose timeout has passed, so a timeout of a place of ours is postponed when it is near. All
-- timeouts behind it are counted from it, so they are postponed by as much.
local soonest = tonumber(redis.call('zrange', KEYS[3], 0, 0, 'withscores')[2] or now + WAIT)
if soonest < now + WAIT / 2 then
  local more = 0
  for _, ticket in ipairs(redis.call('lrange', KEYS[2], 0, -1)) do
    local timeout = tonumber(redis.call('zscore', KEYS[3], ticket) or 0)
    if redis.call('zscore', KEYS[4], ticket) and timeout + more < now + WAIT / 2 then
      more = more + WAIT
    end
    if more > 0 then
      redis.call('zadd', KEYS[3], 'incr', more, ticket)
    end
  end
end

-- The lock is free: a hold expired without a message, or the notified waiter died before it took the lock.
if redis.call('exists', KEYS[1]) == 0 then
  notify(first())
end
return lost
