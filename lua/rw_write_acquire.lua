-- rw_write_acquire: take the lock for writing, for one owner; readers that died are no obstacle.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- ARGV[1]  field     "<owner>:write", the owner's number never used before
-- ARGV[2]  lease_ms  integer > 0; how long the hold lives unless renewed
-- ARGV[3]  prefix    what a hold's key has before its owner: "{lock}:"
--
-- Returns  nil       taken, with a count of one if it was not this owner's before
--          n >= -1   others have it; n ms until the first of their leases runs out, -1 if that is never: a reader
--                    that died tells nobody, nor does one that leaves while the dead one's lease still runs
--
-- Keeps    a writer, and readers one of whose holds is alive (one PTTL per read hold, as Redisson's format has it:
--          what is in the hash does not tell); the hash never exists without a TTL: a lock that cannot be given one
--          is not taken; a hash that is not a read-write lock, answered with a WRONGTYPE error; run twice it
--          changes nothing more
local lock = KEYS[1]
local field, lease_ms, prefix = ARGV[1], ARGV[2], ARGV[3]

local function not_ours()
  return redis.error_reply('WRONGTYPE the key holds a hash that is not a read-write lock')
end

-- How long a reader lives on: -2 if it is dead, huge if there is no telling. In its last millisecond it has 0 left.
local function life_ms(reader, count)
  local holds = tonumber(count)
  if holds > 1000 then
    -- More than any thread has, and more than is looked through.
    return math.huge
  end
  local longest = -2
  for i = holds, 1, -1 do
    local left_ms = redis.call('pttl', prefix .. reader .. ':rwlock_timeout:' .. i)
    longest = math.max(longest, left_ms == -1 and math.huge or left_ms)
  end
  return longest
end

-- First, because it is the one that refuses a key of another type.
local mode = redis.call('hget', lock, 'mode')
local left_ms = redis.call('pttl', lock)
if left_ms ~= -2 and mode ~= 'read' and mode ~= 'write' then
  return not_ours()
end
if mode == 'write' then
  if redis.call('hexists', lock, field) == 0 then
    return left_ms
  end
  if left_ms < tonumber(lease_ms) then
    redis.call('pexpire', lock, lease_ms)
  end
  return nil
end

if mode == 'read' then
  local living, soonest, dead = false, math.huge, {}
  local fields = redis.call('hgetall', lock)
  for i = 1, #fields, 2 do
    local reader, count = fields[i], fields[i + 1]
    if reader ~= 'mode' then
      if not string.find(reader, '^%x+%-%x+%-%x+%-%x+%-%x+:') or not string.find(count, '^%d+$') then
        return not_ours()
      end
      local life = life_ms(reader, count)
      if life == -2 then
        dead[#dead + 1] = reader
      else
        living = true
        soonest = math.min(soonest, life)
      end
    end
  end
  if living then
    for _, reader in ipairs(dead) do
      redis.call('hdel', lock, reader)
    end
    if left_ms == -1 then
      return soonest < math.huge and soonest or -1
    end
    return math.min(soonest, left_ms)
  end
  redis.call('del', lock)
end

redis.call('hset', lock, 'mode', 'write', field, 1)
local kept = redis.pcall('pexpire', lock, lease_ms)
if type(kept) == 'table' then
  redis.call('del', lock)
  return kept
end
return nil
