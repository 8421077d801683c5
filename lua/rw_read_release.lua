-- rw_read_release: end one owner's read hold, drop readers that died, and notify those who wait.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- KEYS[2]  channel   where waiters of this lock listen
-- KEYS[3]  hold      string that lives as long as this hold: "{lock}:<owner>:rwlock_timeout:1"
-- KEYS[4]  note      to undo an acquire: string: the waiter of this side that is noted. Its note is removed, and those
--                    behind it are notified
-- ARGV[1]  owner     "<client uuid>:<number>"
-- ARGV[2]  prefix    what a hold's key has before its owner: "{lock}:"
--
-- Returns  n > 0     released, and nobody reads any more; n processes were listening
--          0         released; others have it, or nobody was listening
--          -1        nothing of this owner was there; nobody has the lock, or others read
--          -2        nothing of this owner was there; somebody writes, or it is not a read-write lock
--
-- Keeps    readers one of whose holds is alive, and the lock for as long as the longest-lived of them; fields that are
--          no reader's; below a write hold, everything but this owner's; run twice it removes nothing more
--
-- Cost     one PTTL for each of a few readers, whatever their number, and one for each of the dead that are dropped.
--          A few readers are all looked at, and the lock gets the time of the longest-lived. Of more, a few random ones
--          are, and further ones as long as all of them were dead. So the dead go with the last reader that lives, if
--          they are no more than one call looks at; before that each release finds a random few of them, and a writer
--          that asks does. The lock keeps the time it has then, or gets what those seen need. Redisson's writers wait for
--          the end of it. So where it has by far more than those seen, all of some readers are looked at if the one that
--          leaves had the longest lease, and otherwise now and then: that one may have left when another still needed much.
local owner, prefix = ARGV[1], ARGV[2]
local FEW = 8

-- First, because these two refuse keys of another type.
local mode = redis.call('hget', KEYS[1], 'mode')
redis.call('get', KEYS[3])
if KEYS[4] and redis.call('get', KEYS[4]) == owner then
  redis.call('del', KEYS[4])
  redis.pcall('publish', KEYS[2], '1')
end

local count = redis.call('hlen', KEYS[1])
local own_ms = count > FEW and redis.call('pttl', KEYS[3]) or 0
redis.call('del', KEYS[3])
if mode ~= 'read' and mode ~= 'write' and count > 0 then
  return -2
end
local released = mode and redis.call('hdel', KEYS[1], owner) == 1
if mode == 'write' then
  return released and 0 or -2
end

-- Drops the dead among these readers. How long the longest-lived of the others lives.
local function longest_life(fields)
  local longest = -2
  for i = 1, #fields, 2 do
    if fields[i] ~= 'mode' then
      local life = is_hold(fields[i], fields[i + 1]) and life_ms(prefix, fields[i], fields[i + 1]) or math.huge
      if life == -2 then
        redis.call('hdel', KEYS[1], fields[i])
      end
      longest = math.max(longest, life)
    end
  end
  return longest
end

-- A few random readers, or at least a few, by the number in the owner, for a user without the right to the former.
local cursor = string.match(owner, '(%d%d?%d?%d?%d?%d?)$') or '0'
local function some_readers()
  local found = redis.pcall('hrandfield', KEYS[1], FEW, 'withvalues')
  if not found.err then
    return found
  end
  found = redis.call('hscan', KEYS[1], cursor, 'count', FEW)
  cursor = found[1]
  return found[2]
end

local longest, all = -2, true
count = released and count - 1 or count
while count > 1 and longest == -2 do
  all = count <= FEW
  local fields = all and redis.call('hgetall', KEYS[1]) or some_readers()
  longest = longest_life(fields)
  count = redis.call('hlen', KEYS[1])
end
if count > 1 then
  local left_ms = all and 0 or redis.call('pttl', KEYS[1])
  -- The time that is left is as good as a random number.
  local looks = not released or own_ms > left_ms * 0.9 or left_ms % 16 == 0
  if not all and count <= SOME and (left_ms == -1 or looks and left_ms > longest * 2) then
    all, longest = true, longest_life(redis.call('hgetall', KEYS[1]))
  end
  if longest < math.huge and (all or left_ms ~= -1 and left_ms < longest) then
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
