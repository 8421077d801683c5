-- rw_write_acquire: take the lock for writing, for one owner; dead readers are removed.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- KEYS[2]  note      see the prelude: of writers
-- KEYS[3]  other     of readers
-- ARGV[1]  field     see the prelude: "<owner>:write", with a number that never had a hold
-- ARGV[2]  behind    see the prelude
-- ARGV[3]  note_ms   see the prelude
-- ARGV[4]  again_ms  see the prelude
-- ARGV[5]  lease_ms  integer > 0; how long the hold lives unless renewed
-- ARGV[6]  prefix    what precedes the owner in a hold's key: "{lock}:"
--
-- Returns  {1, -2, ''}  taken, with a count of one unless an earlier run took it
--          {0, n, b}  not taken, behind b; ask again in n ms (-1: not known), when the first of these is due: a note ends, a
--                    lease that was found ends, or this waiter's note has to be extended. (Perhaps no message comes. A dead
--                    reader sends none. A living reader that leaves sends none either while the lease of a dead one runs,
--                    since the lock is not free yet.) Of many readers some are checked; n is 0 if these were all dead and
--                    are removed, but others are left
--
-- Keeps    a writer, and readers that are alive or were not checked (one PTTL per read hold, since in Redisson's format the
--          hash itself does not say who lives); the hash never exists without a TTL: a lock that cannot be given one is not
--          taken
-- Twice    changes nothing more
-- Errors   WRONGTYPE for a hash that is not a read-write lock
local field, lease_ms, prefix = ARGV[1], ARGV[5], ARGV[6]

local function granted()
  if noted == waiter then
    redis.call('del', KEYS[2])
  end
  return {1, -2, ''}
end

-- HGET comes first because it fails for a key of another type.
local mode = redis.call('hget', KEYS[1], 'mode')
local left_ms = redis.call('pttl', KEYS[1])
if left_ms ~= -2 and mode ~= 'read' and mode ~= 'write' then
  return no_lock('read-write lock') or not_a('read-write lock')
end
-- A writer holds the lock. If that is this field, an earlier run of this request took it.
if mode == 'write' then
  if redis.call('hexists', KEYS[1], field) == 0 then
    return no_lock('read-write lock', mode) or refused(left_ms)
  end
  if left_ms < tonumber(lease_ms) then
    redis.call('pexpire', KEYS[1], lease_ms)
  end
  return granted()
end
-- A noted reader goes first, until its note ends.
if behind ~= '' then
  return mode and no_lock('read-write lock', mode) or refused(other_ms)
end

if mode == 'read' then
  local count = redis.call('hlen', KEYS[1])
  if count == 1 then
    return not_a('read-write lock')
  end
  -- The scan starts at another place each time, since an earlier call has removed the dead where it looked. The remaining
  -- time serves as a random number. The loop ends: each reader found is alive, needs too many reads, or is removed.
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
  -- Dead readers were removed, and more may follow: ask again at once.
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
-- Without a TTL the lock would never be free again, so a hold that gets none is removed.
local kept = redis.pcall('pexpire', KEYS[1], lease_ms)
if type(kept) == 'table' then
  redis.call('del', KEYS[1])
  return kept
end
return granted()
