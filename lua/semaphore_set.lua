-- semaphore_set: create a semaphore, unless it exists.
--
-- KEYS[1]    available  integer; how many permits are available
-- KEYS[2]    channel    where waiters of this semaphore listen
-- KEYS[3]    request    the result of this request
-- KEYS[4…n] answered   keys of earlier requests whose answers have arrived, at most four
-- ARGV[1]    permits    integer >= 0
-- ARGV[2]    keep_ms    integer > 0; how long the request is remembered
-- ARGV[3]    ttl_ms     integer >= 0; how long the semaphore lives, 0 for no limit
--
-- Returns    1          created, now or when this request ran first
--            0          it existed
--
-- Keeps      a semaphore that exists
-- Twice      the second run answers as the first
-- Errors     WRONGTYPE for a key that holds no integer
local permits, keep_ms, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

local before = redis.call('get', KEYS[3])
if before then
  return tonumber(before)
end
local value = redis.call('get', KEYS[1])
if value then
  if value ~= '0' and not string.find(value, '^%-?[1-9]%d*$') then
    return redis.error_reply('WRONGTYPE the key holds no number of permits')
  end
end
-- The result is remembered even if the semaphore existed: a late copy of this request must not create it after a delete.
redis.call('set', KEYS[3], value and '0' or '1', 'px', keep_ms)
if #KEYS > 3 then
  redis.call('del', unpack(KEYS, 4))
end
if value then
  return 0
end
if ttl_ms == '0' then
  redis.call('set', KEYS[1], permits)
else
  redis.call('set', KEYS[1], permits, 'px', ttl_ms)
end
-- A user without rights on the channel still creates the semaphore; waiters then poll.
if permits ~= '0' then
  redis.pcall('publish', KEYS[2], permits)
end
return 1
