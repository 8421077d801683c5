-- rw_read_release: end one owner's read hold, drop readers that died, and notify those who wait.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- KEYS[2]  channel   where waiters of this lock listen
-- KEYS[3]  hold      string that lives as long as this hold: "{lock}:<owner>:rwlock_timeout:1"
-- ARGV[1]  owner     "<client uuid>:<number>"
-- ARGV[2]  prefix    what a hold's key has before its owner: "{lock}:"
--
-- Returns  n > 0     released, and nobody reads any more; n processes were listening
--          0         released; others have it, or nobody was listening
--          -1        nothing of this owner was there; nobody has the lock, or others read
--          -2        nothing of this owner was there; somebody writes, or it is not a read-write lock
--
-- Keeps    readers one of whose holds is alive, and the lock for as long as the longest-lived of them (one PTTL per
--          read hold, as Redisson's format has it: the hash itself does not say); fields that are no reader's;
--          below a write hold, everything but this owner's; run twice it removes nothing more. Where there are more
--          readers or holds than one call looks at, it drops the dead among some of them, different ones each time,
--          and leaves the lock the time it has: at most what its longest lease had left
local owner, prefix = ARGV[1], ARGV[2]

-- First, because these two refuse keys of another type.
local mode = redis.call('hget', KEYS[1], 'mode')
redis.call('get', KEYS[3])

redis.call('del', KEYS[3])
if mode ~= 'read' and mode ~= 'write' and redis.call('exists', KEYS[1]) == 1 then
  return -2
end
local released = mode and redis.call('hdel', KEYS[1], owner) == 1
if mode == 'write' then
  return released and 0 or -2
end

local count = redis.call('hlen', KEYS[1])
local longest, fields = -2, {}
if count > SOME then
  -- From a different place each time, so that none of the dead is missed for ever.
  longest = math.huge
  fields = redis.call('hscan', KEYS[1], string.match(owner, '%d%d?%d?%d?%d?%d?$') or '0', 'count', SOME)[2]
elseif count > 1 then
  fields = redis.call('hgetall', KEYS[1])
end
for i = 1, #fields, 2 do
  if fields[i] ~= 'mode' then
    local life = is_reader(fields[i], fields[i + 1]) and life_ms(prefix, fields[i], fields[i + 1]) or math.huge
    if life == -2 then
      redis.call('hdel', KEYS[1], fields[i])
    end
    longest = math.max(longest, life)
  end
end
if count > 1 and redis.call('hlen', KEYS[1]) > 1 then
  if longest < math.huge then
    redis.call('pexpire', KEYS[1], string.format('%.0f', math.max(longest, 1)))
  end
  return released and 0 or -1
end
redis.call('del', KEYS[1])
-- A user without rights on the channel still releases; waiters then poll.
local notified = redis.pcall('publish', KEYS[2], '0')
if not released then
  return -1
end
return type(notified) == 'number' and notified or 0
