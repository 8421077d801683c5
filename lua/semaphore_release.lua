-- semaphore_release: add this many permits, or remove some, and notify those who wait.
--
-- KEYS[1]    available  integer; how many permits are available
-- KEYS[2]    channel    where waiters of this semaphore listen
-- KEYS[3]    request    the result of this request: "done", or "none" without a semaphore
-- KEYS[4…n] answered   keys of earlier requests whose answers have arrived, at most four
-- ARGV[1]    permits    integer; a negative number removes permits
-- ARGV[2]    keep_ms    integer > 0; how long the request is remembered
-- ARGV[3]    create     "1" to create a semaphore that does not exist
--
-- Returns    n >= 0     done; n processes were listening, 0 if it had been done before
--            -1         there is no semaphore
--
-- Keeps      the TTL of the semaphore
-- Twice      the second run changes nothing
-- Errors     WRONGTYPE for a key that holds no integer
local permits, keep_ms, create = ARGV[1], ARGV[2], ARGV[3]

local first = redis.pcall('set', KEYS[3], 'done', 'nx', 'px', keep_ms)
if first and first.err then
  -- SET fails if Redis has no memory left. PEXPIRE needs none, and after a script's first write Redis no longer rejects
  -- writes for lack of memory. PEXPIRE also says whether an earlier run has remembered the request.
  first = redis.call('pexpire', KEYS[3], keep_ms) == 0
  if first then
    redis.call('set', KEYS[3], 'done', 'px', keep_ms)
  end
end
if not first then
  return redis.call('get', KEYS[3]) == 'none' and -1 or 0
end
if #KEYS > 3 then
  redis.call('del', unpack(KEYS, 4))
end
if create ~= '1' and redis.call('exists', KEYS[1]) == 0 then
  -- This result is remembered too: a late copy of this request must not add permits to the next semaphore.
  redis.call('set', KEYS[3], 'none', 'px', keep_ms)
  return -1
end
local now = redis.pcall('incrby', KEYS[1], permits)
if type(now) == 'table' then
  redis.call('del', KEYS[3])
  if string.find(now.err, 'not an integer') then
    return redis.error_reply('WRONGTYPE the key holds no number of permits')
  end
  return now
end
if now <= 0 then
  return 0
end
-- The message is at most the largest `int` of Java. A user without rights on the channel still releases; waiters then poll.
local notified = redis.pcall('publish', KEYS[2], string.format('%.0f', math.min(now, 2147483647)))
return type(notified) == 'number' and notified or 0
