-- rw_write_acquire: take the lock for writing, for one owner; readers that died are no obstacle.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- KEYS[2]  note      see the prelude: of writers
-- KEYS[3]  other     of readers
-- ARGV[1]  field     see the prelude: "<owner>:write", the owner's number never had a hold
-- ARGV[2]  behind    see the prelude
-- ARGV[3]  note_ms   see the prelude
-- ARGV[4]  again_ms  see the prelude
-- ARGV[5]  lease_ms  integer > 0; how long the hold lives unless renewed
-- ARGV[6]  prefix    what a hold's key has before its owner: "{lock}:"
--
-- Returns  {1, -2, ''}  taken, with a count of one if it was not this owner's before
--          {0, n, b}  not taken; ask again in n ms (-1: not known), behind b: a note runs out then, or the first of the
--                    leases of those that have it. A reader that died notifies nobody, nor does one that leaves while
--                    the dead one's lease still runs. Of many readers only some are looked at; 0 if all of them were
--                    dead and are gone now, but not all readers
--
-- Keeps    a writer, and readers one of whose holds is alive (one PTTL per read hold, as Redisson's format has it:
--          the hash itself does not say), or that were not looked at; the hash never exists without a TTL: a
--          lock that cannot be given one is not taken; a hash that is not a read-write lock, answered with a
--          WRONGTYPE error; run twice it changes nothing more
local field, lease_ms, prefix = ARGV[1], ARGV[5], ARGV[6]

local function granted()
  if noted == waiter then
    redis.call('del', KEYS[2])
  end
  return {1, -2, ''}
end

-- First, because it is the one that refuses a key of another type.
local mode = redis.call('hget', KEYS[1], 'mode')
local left_ms = redis.call('pttl', KEYS[1])
if left_ms ~= -2 and mode ~= 'read' and mode ~= 'write' then
  return not_a('read-write lock')
end
if mode == 'write' then
  if redis.call('hexists', KEYS[1], field) == 0 then
    return no_lock('read-write lock', mode) or refused(left_ms)
  end
  if left_ms < tonumber(lease_ms) then
    redis.call('pexpire', KEYS[1], lease_ms)
  end
  return granted()
end
if behind ~= '' then
  return mode and no_lock('read-write lock', mode) or refused(other_ms)
end

if mode == 'read' then
  local count = redis.call('hlen', KEYS[1])
  if count == 1 then
    return not_a('read-write lock')
  end
  -- From a different place each time, since nothing is left where an earlier call dropped the dead. The time that is left
  -- is as good as a random number.
  local cursor = string.format('%.0f', math.max(left_ms, 0))
  local living, unknown, dropped, soonest = false, false, false, math.huge
  while count > 1 and not living and not unknown do
    local fields
    if count > SOME then
      local found = redis.call('hscan', KEYS[1], cursor, 'count', SOME)
      cursor, fields = found[1], found[2]
    else
      fields = redis.call('hgetall', KEYS[1])
    end
    local dead = {}
    for i = 1, #fields, 2 do
      local reader, holds = fields[i], fields[i + 1]
      if reader ~= 'mode' then
        if not is_hold(reader, holds) then
          return not_a('read-write lock')
        end
        local life = life_ms(prefix, reader, holds)
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
      dropped = redis.call('hdel', KEYS[1], reader) == 1 or dropped
    end
    count = redis.call('hlen', KEYS[1])
  end
  if unknown and dropped and not living then
    return refused(0)
  end
  if living or unknown then
    if left_ms == -1 then
      return refused(soonest < math.huge and soonest or -1)
    end
    return refused(math.min(soonest, left_ms))
  end
  redis.call('del', KEYS[1])
end

redis.call('hset', KEYS[1], 'mode', 'write', field, 1)
local kept = redis.pcall('pexpire', KEYS[1], lease_ms)
if type(kept) == 'table' then
  redis.call('del', KEYS[1])
  return kept
end
return granted()
