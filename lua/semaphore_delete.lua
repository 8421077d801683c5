-- semaphore_delete: delete a semaphore, whatever permits are taken.
--
-- KEYS[1]    available  integer; how many permits are available
-- KEYS[2]    request    the result of this request
-- KEYS[3…n] answered   keys of earlier requests whose answers have arrived, at most four
-- ARGV[1]    keep_ms    integer > 0; how long the request is remembered
--
-- Returns    1          deleted, now or when this request ran first
--            0          it did not exist
--
-- Keeps      waiters asleep, since no permits are available
-- Twice      the second run changes nothing
-- Errors     WRONGTYPE for a key that holds no integer
local keep_ms = ARGV[1]

local before = redis.call('get', KEYS[2])
if before then
  return tonumber(before)
end
local value = redis.call('get', KEYS[1])
if value and value ~= '0' and not string.find(value, '^%-?[1-9]%d*$') then
  return redis.error_reply('WRONGTYPE the key holds no number of permits')
end
local deleted = redis.call('del', KEYS[1])
-- The result is remembered even if there was nothing: a late copy of this request must not delete the next semaphore. DEL needs
-- no memory, and after a script's first write Redis no longer rejects writes for lack of memory.
redis.call('set', KEYS[2], deleted, 'px', keep_ms)
if #KEYS > 2 then
  redis.call('del', unpack(KEYS, 3))
end
return deleted
