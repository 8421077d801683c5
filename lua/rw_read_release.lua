-- rw_read_release: end one owner's read hold, remove dead readers, and notify those who wait.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- KEYS[2]  channel   where waiters of this lock listen
-- KEYS[3]  hold      string that lives as long as this hold: "{lock}:<owner>:rwlock_timeout:1"
-- KEYS[4]  note      string: the noted waiter of this side; given only to undo an acquire. If this owner is noted, the note is
--                    removed, and those who wait are notified
-- ARGV[1]  owner     "<client uuid>:<number>"
-- ARGV[2]  prefix    what precedes the owner in a hold's key: "{lock}:"
--
-- Returns  n > 0     released, and nobody reads any more; n processes were listening
--          0         released; others have the lock, or nobody was listening
--          -1        this owner had no hold, and nobody writes: the lock is free, or others read (then dead readers stay)
--          -2        this owner had no hold; somebody writes, or the key is not a read-write lock
--
-- Keeps    every reader that has a living hold, fields that are no reader's, and the lock for as long as the longest-lived reader.
--          As in Redisson, a reader without a living hold is removed, even if a multi-lock of Redisson has extended the hash
--          for it. If the lock is in write mode, only this owner's read hold is removed
-- Twice    removes nothing more
--
-- Cost     one PTTL for each read hold that is checked. If the leaving reader was one of up to FEW (8), all others are checked,
--          and the lock's TTL becomes that of the longest-lived. If there were more readers, FEW random fields at a time are
--          checked, until a living reader is found. The lock then keeps its TTL, or gets the longer one that a checked reader
--          needs. A TTL that is too long delays writers, since those of Redisson sleep until it ends. So with up to SOME (128)
--          readers, all are checked in each of these cases:
--          - The lock has no TTL.
--          - The lock's TTL is more than twice as long as the longest life among the readers that were checked first, and the
--            key of the leaving hold had more than nine tenths of the lock's TTL left. Then that TTL was probably set for the
--            leaving hold.
--          - The lock's TTL is more than twice that longest life, and this is one release of about 16, chosen by chance.
local owner, prefix = ARGV[1], ARGV[2]
local FEW = 8

-- These two come first because they fail, before anything is written, if a key holds another type.
local mode = redis.call('hget', KEYS[1], 'mode')
redis.call('get', KEYS[3])
if KEYS[4] and redis.call('get', KEYS[4]) == owner then
  redis.call('del', KEYS[4])
  redis.pcall('publish', KEYS[2], '1')
end

local count = redis.call('hlen', KEYS[1])
local own_ms = count > FEW and redis.call('pttl', KEYS[3]) or 0
redis.call('del', KEYS[3])
-- A hash with a single field is no lock: a lock has `mode` and at least one hold.
if count == 1 or mode ~= 'read' and mode ~= 'write' and count > 0 then
  return -2
end
local released = mode and redis.call('hdel', KEYS[1], owner) == 1
if mode == 'write' then
  return released and 0 or -2
elseif mode and not released then
  return -1
end

-- Removes the dead among these readers, and returns how long the longest-lived of the others lives. A field that is no
-- reader's counts as alive, so that another application's hash is kept.
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

-- A random few of the readers. A user without the right to HRANDFIELD gets some by HSCAN, from a place that depends on the
-- number in the owner.
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
count = count - 1
while count > 1 and longest == -2 do
  all = count <= FEW
  local fields = all and redis.call('hgetall', KEYS[1]) or some_readers()
  longest = longest_life(fields)
  count = redis.call('hlen', KEYS[1])
end
if count > 1 then
  local left_ms = all and 0 or redis.call('pttl', KEYS[1])
  -- `left_ms % 16`: the remaining time serves as a random number, for one release in 16.
  local looks = own_ms > left_ms * 0.9 or left_ms % 16 == 0
  if not all and count <= SOME and (left_ms == -1 or looks and left_ms > longest * 2) then
    all, longest = true, longest_life(redis.call('hgetall', KEYS[1]))
  end
  if longest < math.huge and (all or left_ms ~= -1 and left_ms < longest) then
    redis.call('pexpire', KEYS[1], string.format('%.0f', math.max(longest, 1)))
  end
  return 0
end
redis.call('del', KEYS[1])
-- A user without rights on the channel still releases; waiters then poll.
local notified = redis.pcall('publish', KEYS[2], '0')
if not released then
  return -1
end
return type(notified) == 'number' and notified or 0
