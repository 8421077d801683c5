-- multi_acquire: take all of several locks for one owner, or none.
--
-- KEYS[1…n]  lock      hash: owner -> hold count
-- ARGV[1]    owner     "<client uuid>:<number>", a number never used before
-- ARGV[2]    lease_ms  integer > 0; how long the hold lives unless renewed
--
-- Returns    nil       all taken, with a count of one
--            {i, ms}   somebody else has KEYS[i], the first that is not free; ms until their lease runs out, -1 if
--                      it never does
--
-- Keeps      at most one owner in each hash; no hash ever exists without a TTL: if one cannot be given one,
--            none is taken; run twice by one owner it is as if only the second had run;
--            a key that holds something else, a read-write lock included: a WRONGTYPE error, and none is taken
local owner, lease_ms = ARGV[1], ARGV[2]

-- Free keys are the rule, and then nothing has to be looked at one by one.
if redis.call('exists', unpack(KEYS)) > 0 then
  local busy
  for i = 1, #KEYS do
    local mine = redis.call('hexists', KEYS[i], owner) == 1
    if not mine and redis.call('exists', KEYS[i]) == 1 then
      if redis.call('hexists', KEYS[i], 'mode') == 1 then
        return redis.error_reply('WRONGTYPE the key holds a read-write lock')
      end
      busy = busy or i
    end
  end
  if busy then
    return {busy, redis.call('pttl', KEYS[busy])}
  end
end
for i = 1, #KEYS do
  -- A copy has the TTL too: one command instead of two. It is refused where the key is ours already.
  local copied = i > 1 and redis.pcall('copy', KEYS[1], KEYS[i])
  if copied ~= 1 then
    redis.call('hset', KEYS[i], owner, 1)
    local kept = redis.pcall('pexpire', KEYS[i], lease_ms)
    if type(kept) == 'table' then
      for j = 1, i do
        redis.call('hdel', KEYS[j], owner)
      end
      return kept
    end
  end
end
return nil
