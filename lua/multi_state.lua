-- multi_state: ask whether several locks are free.
--
-- KEYS[1…n]  lock      hash: owner -> hold count
--
-- Returns    -2        nobody holds any of them
--            -1        somebody holds one of them for ever
--            n >= 0    somebody holds one of them; n ms until the last of the leases runs out
--
-- Keeps      everything; a key that holds something else: a WRONGTYPE error
local longest = -2
for i = 1, #KEYS do
  if redis.call('hlen', KEYS[i]) > 0 then
    local left_ms = redis.call('pttl', KEYS[i])
    if left_ms == -1 then
      return -1
    end
    longest = math.max(longest, left_ms)
  end
end
return longest
