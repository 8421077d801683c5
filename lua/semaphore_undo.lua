-- semaphore_undo: return what one acquire took, or make sure that it takes nothing if it is yet to come.
--
-- KEYS[1]  available  integer; how many permits are available
-- KEYS[2]  channel    where waiters of this semaphore listen
-- KEYS[3]  request    what the acquire took; "void" from now on
-- ARGV[1]  keep_ms    integer > 0; how long the request is remembered
--
-- Returns  n >= 0     done; n processes were listening, 0 if nothing had been taken
--
-- Keeps    the TTL of the semaphore; run twice, the second run changes nothing; a semaphore that is gone stays so
local keep_ms = ARGV[1]

local took = redis.call('get', KEYS[3])
-- It needs no memory: after a first write none is refused for want of some.
redis.call('pexpire', KEYS[3], keep_ms)
redis.call('set', KEYS[3], 'void', 'px', keep_ms)
if not took or took == 'void' or redis.call('exists', KEYS[1]) == 0 then
  return 0
end
local now = redis.call('incrby', KEYS[1], took)
if now <= 0 then
  return 0
end
-- No more than Java clients can read. A user without rights on the channel still returns them; waiters then poll.
local notified = redis.pcall('publish', KEYS[2], string.format('%.0f', math.min(now, 2147483647)))
return type(notified) == 'number' and notified or 0
