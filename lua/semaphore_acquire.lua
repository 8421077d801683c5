-- semaphore_acquire: take this many permits, or none.
--
-- KEYS[1]    available  integer; how many permits are available
-- KEYS[2]    request    how many permits this request took, for an undo; "void" if the undo arrived first
-- KEYS[3…n] answered   keys of earlier requests whose answers have arrived, at most four
-- ARGV[1]    permits    integer > 0
-- ARGV[2]    keep_ms    integer > 0; how long the request is remembered
--
-- Returns    1          taken
--            0          fewer are available, or the request has run before or is void
--            -1         there is no semaphore
--
-- Keeps      the TTL of the semaphore
-- Twice      the second run takes nothing and does not reply 1, so a client must not send a request again
-- Errors     WRONGTYPE for a key that holds no integer
local permits, keep_ms = ARGV[1], ARGV[2]

local strange = 'WRONGTYPE the key holds no number of permits'
local value = redis.call('get', KEYS[1])
-- `tonumber` accepts a fraction, which DECRBY below rejects if the script gets that far.
local there = tonumber(value or 0)
if not there then
  return redis.error_reply(strange)
end
if there < tonumber(permits) then
  if #KEYS > 2 then
    redis.call('del', unpack(KEYS, 3))
  end
  return value and 0 or -1
end
-- The request's key exists if `semaphore_undo` arrived first or an earlier run took the permits. In both cases this run takes
-- none.
if not redis.call('set', KEYS[2], permits, 'nx', 'px', keep_ms) then
  return 0
end
local left = redis.pcall('decrby', KEYS[1], permits)
if type(left) == 'table' then
  redis.call('del', KEYS[2])
  return redis.error_reply(strange)
end
if #KEYS > 2 then
  redis.call('del', unpack(KEYS, 3))
end
return 1
