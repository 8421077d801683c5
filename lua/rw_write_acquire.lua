-- rw_write_acquire: take the lock for writing, for one owner; readers that died are no obstacle.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- ARGV[1]  field     "<owner>:write", the owner's number never used before
-- ARGV[2]  lease_ms  integer > 0; how long the hold lives unless renewed
-- ARGV[3]  prefix    what a hold's key has before its owner: "{lock}:"
--
-- Returns  nil       taken, with a count of one if it was not this owner's before
--          n >= -1   others have it; n ms until the first of their leases runs out, -1 if that is never: a reader
--                    that died notifies nobody, nor does one that leaves while the dead one's lease still runs. Of many
--                    readers only some are looked at; 0 if all of them were dead and are gone now, but not all readers
--
-- Keeps    a writer, and readers one of whose holds is alive (one PTTL per read hold, as Redisson's format has it:
--          the hash itself does not say), or that were not looked at; the hash never exists without a TTL: a
--          lock that cannot be given one is not taken; a hash that is not a read-write lock, answered with a
--          WRONGTYPE error; run twice it changes nothing more
local lock = KEYS[1]
local field, lease_ms, prefix = ARGV[1], ARGV[2], ARGV[3]

local function not_ours()
  return redis.error_reply('WRONGTYPE the key holds a hash that is not a read-write lock')
end

-- What one call looks at: so many readers at a time, as long as all of them are dead, and so many holds in all.
local some, holds_to_look_at = 128, 1000

-- How long a reader lives on: -2 if it is dead, nil if that would take too many looks. In its last millisecond it has 0 left.
local function life_ms(reader, count)
  local holds = tonumber(count)
  if holds > holds_to_look_at then
    return nil
  end
  holds_to_look_at = holds_to_look_at - math.max(holds, 1)
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
  local count = redis.call('hlen', lock)
  -- From a different place each time: nothing is left where an earlier call dropped the dead.
  local cursor = string.match(field, '(%d%d?%d?%d?%d?%d?):write$') or '0'
  local living, unknown, dropped, soonest = false, false, false, math.huge
  while count > 1 and not living and not unknown do
    local fields
    if count > some then
      local found = redis.call('hscan', lock, cursor, 'count', some)
      cursor, fields = found[1], found[2]
    else
      fields = redis.call('hgetall', lock)
    end
    local dead = {}
    for i = 1, #fields, 2 do
      local reader, holds = fields[i], fields[i + 1]
      if reader ~= 'mode' then
        if not string.find(reader, '^%x+%-%x+%-%x+%-%x+%-%x+:') or not string.find(holds, '^%d+$') then
          return not_ours()
        end
        local life = life_ms(reader, holds)
        if not life then
          unknown = true
        elseif life == -2 then
          dead[#dead + 1] = reader
        else
          living = true
          soonest = math.min(soonest, life)
        end
      end
    end
    for _, reader in ipairs(dead) do
      dropped = redis.call('hdel', lock, reader) == 1 or dropped
    end
    count = redis.call('hlen', lock)
  end
  if unknown and dropped and not living then
    return 0
  end
  if living or unknown then
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
