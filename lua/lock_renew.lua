-- lock_renew: make one owner's hold of each of these locks live longer; never create one.
--
-- KEYS[1…n]   lock      hash: owner -> hold count
-- ARGV[1…3n]  owner     "<client uuid>:<number>"
--             lease_ms  integer > 0; how long the hold lives from now on
--             count     integer > 0; the hold count that the owner knows; these three for each lock in turn
--
-- Returns     1         renewed
--             0         nobody holds the lock
--             -1        somebody else holds it, or the hold is kept (lock_keep)
--             an error  the key holds something else
--
--             (These are the replies for one lock. For several locks, the reply is an array with one of these for each.)
--
-- Keeps       a longer remaining TTL as it is; the old count, if there is no memory for a new one
-- Twice       changes nothing more
-- Errors      an error of one lock does not affect the others
local replies = {}
for i = 1, #KEYS do
  local owner, lease_ms, count = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
  local known = redis.pcall('hget', KEYS[i], owner)
  if type(known) == 'table' then
    replies[i] = known
  elseif not known or known == '0' then
    replies[i] = redis.call('exists', KEYS[i]) == 1 and -1 or 0
  else
    local left_ms = redis.call('pttl', KEYS[i])
    -- A longer TTL stays: a later renewal or acquire with a longer lease may have set it.
    if left_ms < tonumber(lease_ms) then
      redis.call('pexpire', KEYS[i], lease_ms)
    end
    if known ~= count then
      -- `pcall`: if Redis has no memory for the new count, the hold is renewed all the same.
      redis.pcall('hset', KEYS[i], owner, count)
    end
    replies[i] = 1
  end
end
return #KEYS == 1 and replies[1] or replies
