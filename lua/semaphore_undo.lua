-- semaphore_undo: return what one acquire took, or make sure that it takes nothing if it arrives later.
--
-- KEYS[1]  available  integer; how many permits are available
-- KEYS[2]  channel    where waiters of this semaphore listen
-- KEYS[3]  request    what the acquire took; "void" from now on
-- ARGV[1]  keep_ms    integer > 0; how long the request is remembered
--
-- Returns  n >= 0     done; n processes were listening, 0 if nothing had been taken
--
-- Keeps    the TTL of the semaphore; a deleted semaphore is not created again
-- Twice    the second run changes nothing
local keep_ms = ARGV[1]

local took = redis.call('get', KEYS[3])
-- PEXPIRE needs no memory, and after a script's first write Redis no longer rejects SET for lack of memory.
redis.call('pexpire', KEYS[3], keep_ms)
redis.call('set', KEYS[3], 'void', 'px', keep_ms)
-- Nothing was taken, or it was undone before, or the semaphore was deleted and must not be created again.
if not took or took == 'void' or redis.call('exists', KEYS[1]) == 0 then
  return 0
end
local now = redis.call('incrby', KEYS[1], took)
if now <= 0 then
  return 0
end
-- The message is at most the largest `int` of Java. A user without rights on the channel still returns the permits; waiters
-- then poll.
local notified = redis.pcall('publish', KEYS[2], string.format('%.0f', math.min(now, 2147483647)))
return type(notified) == 'number' and notified or 0
