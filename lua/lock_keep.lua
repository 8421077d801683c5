-- lock_keep: let one owner's hold expire at a given time instead of releasing it, so that the name stays taken until then.
--
-- KEYS[1]  lock     hash: owner -> hold count
-- KEYS[2]  channel  where waiters of this lock listen; of a fair lock the base: a waiter listens at
--                   `<this>:<ticket>`; left out for a spin lock
-- KEYS[3]  other    of a read hold: the string that lives as long as the hold, 0 once the hold is kept; of a fair lock: the
--                   list of tickets; left out for any other hold
-- ARGV[1]  field    the owner, of a write hold followed by ":write"
-- ARGV[2]  ms       integer > 0; how long the hold lives from now on
-- ARGV[3]  kind     'read', 'write', 'fair', or 'lock' for any other kind
--
-- Returns  0        the hold will expire at the given time
--          -1       nobody holds the lock any more
--          -2       somebody else holds it
--
-- Keeps    every other hold. If there are other holds, a longer TTL of the hash stays, since they may need it. A kept hold is
--          marked with a 0: in its count, or for a read hold in its string. (A reader's count has to stay: Redisson takes from it
--          how many timeout keys the reader has.) A renewal that arrives later leaves a marked hold as it is
-- Twice    changes nothing more
local field, ms, kind = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local mark = redis.call('hget', KEYS[1], field)
if mark and kind == 'read' then
  -- A reader's field may outlive its hold, so its string decides.
  mark = redis.call('get', KEYS[3])
end
if not mark then
  return redis.call('exists', KEYS[1]) == 1 and -2 or -1
end
-- An earlier run has marked the hold; the time counts from that run.
if mark == '0' then
  return 0
end
local left_ms = redis.call('pttl', KEYS[1])
local waiting = kind == 'fair' and redis.call('lrange', KEYS[3], 0, 9)
-- Readers may share the hash. A hold that is alone decides how long the hash lives. Beside others, it only extends the
-- hash's TTL. (If somebody else has removed the hash's TTL, it gets one here, as in Redisson.)
local holds = redis.call('hlen', KEYS[1]) - redis.call('hexists', KEYS[1], 'mode')
local is_alone = holds == 1
-- PEXPIRE comes first: Redis rejects writes for lack of memory only until the script's first write.
redis.call('pexpire', KEYS[1], string.format('%.0f', is_alone and ms or math.max(left_ms, ms)))
if kind == 'read' then
  redis.call('set', KEYS[3], '0', 'px', ms)
else
  redis.call('hset', KEYS[1], field, 0)
end
-- Waiters, above all those of Redisson, sleep until the end of the lease that they last saw. The lock now ends earlier, so a
-- message makes them ask again. (`pcall`: a user without rights on the channel still ends the hold.)
if is_alone and (left_ms == -1 or ms < left_ms) then
  if kind == 'fair' then
    -- The first in the queue may have died, so the next ones are tried until one receives the message.
    for _, ticket in ipairs(waiting) do
      if redis.pcall('publish', KEYS[2] .. ':' .. ticket, '0') ~= 0 then
        break
      end
    end
  elseif KEYS[2] then
    redis.pcall('publish', KEYS[2], (kind == 'read' or kind == 'write') and '1' or '0')
  end
end
return 0
