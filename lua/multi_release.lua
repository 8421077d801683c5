-- multi_release: end one owner's hold on several locks, whatever its count, and notify those who wait.
--
-- KEYS[1…n]     lock      hash: owner -> hold count
-- KEYS[n+1…2n]  channel   where waiters of each lock listen, in the same order
-- ARGV[1]       owner     "<client uuid>:<number>"
--
-- Returns       n >= 0    all released; so many processes were listening
--               -1        nobody holds one of the locks any more, and nobody else holds any of them
--               -2        somebody else holds one of them
--
-- Keeps         other owners' fields; a waiter is notified whenever a lock is seen free;
--               run twice, the second run finds nothing of this owner and removes nothing
local owner = ARGV[1]
local n = #KEYS / 2

local gone, taken, listeners = false, false, 0
for i = 1, n do
  -- A key that holds something else by now is somebody else's.
  local released = redis.pcall('hdel', KEYS[i], owner)
  if released ~= 1 then
    gone = true
  end
end
local all = redis.call('exists', unpack(KEYS, 1, n)) == 0
for i = 1, n do
  if all or redis.call('exists', KEYS[i]) == 0 then
    -- A user without rights on the channel still releases; waiters then poll.
    local notified = redis.pcall('publish', KEYS[n + i], '0')
    if type(notified) == 'number' then
      listeners = listeners + notified
    end
  else
    taken = true
  end
end
if taken then
  return -2
end
if gone then
  return -1
end
return listeners
