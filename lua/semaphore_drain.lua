-- semaphore_drain: take all available permits.
--
-- KEYS[1]    available  integer; how many permits are available
-- KEYS[2]    request    what this request took
-- KEYS[3…n] answered   keys of earlier requests whose answers have arrived, at most four
-- ARGV[1]    keep_ms    integer > 0; how long the request is remembered
--
-- Returns    n          how many were available when this request ran for the first time; negative if more permits had been
--                       removed than were available. After the first run 0 are available, even if n was negative
--
-- Keeps      the TTL of the semaphore
-- Twice      the second run changes nothing
-- Errors     WRONGTYPE for a key that holds no integer
local keep_ms = ARGV[1]

local took = redis.call('get', KEYS[2])
if took then
  return tonumber(took)
end
if #KEYS > 2 then
  redis.pcall('del', unpack(KEYS, 3))
end
local value = redis.call('get', KEYS[1]) or '0'
local strange = 'WRONGTYPE the key holds no number of permits'
if not string.find(value, '^%-?%d+$') then
  return redis.error_reply(strange)
end
-- The result is remembered even if there was nothing: a late copy of this request must not take permits that were set or
-- returned since.
redis.call('set', KEYS[2], value, 'px', keep_ms)
if value ~= '0' then
  local left = redis.pcall('decrby', KEYS[1], value)
  if type(left) == 'table' then
    redis.call('del', KEYS[2])
    return redis.error_reply(strange)
  end
end
return tonumber(value)
