-- multi_renew: make one owner's hold on several locks live longer; never create one.
--
-- KEYS[1…n]  lock      hash: owner -> hold count
-- ARGV[1]    owner     "<client uuid>:<number>"
-- ARGV[2]    lease_ms  integer > 0; how long the hold lives from now on
-- ARGV[3]    count     integer > 0; the hold count its owner knows
--
-- Returns    1         all renewed
--            0         nobody holds one of the locks, and nobody else holds any of them; none was renewed
--            -1        somebody else holds one of them; none was renewed
--
-- Keeps      a longer remaining TTL as it is; the old count, if there is no memory for a new one;
--            run twice it changes nothing more
local owner, lease_ms, count = ARGV[1], ARGV[2], ARGV[3]

local known, gone, taken = {}, false, false
for i = 1, #KEYS do
  -- A key that holds something else by now is somebody else's.
  local held = redis.pcall('hget', KEYS[i], owner)
  if type(held) == 'string' then
    known[i] = held
  elseif redis.call('exists', KEYS[i]) == 1 then
    taken = true
  else
    gone = true
  end
end
if taken then
  return -1
end
if gone then
  return 0
end
for i = 1, #KEYS do
  local left_ms = redis.call('pttl', KEYS[i])
  if left_ms < tonumber(lease_ms) then
    redis.call('pexpire', KEYS[i], lease_ms)
  end
  if known[i] ~= count then
    -- Last, and not insisted on: without memory for it the hold lives on all the same.
    redis.pcall('hset', KEYS[i], owner, count)
  end
end
return 1
