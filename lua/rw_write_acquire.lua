-- rw_write_acquire: take the lock for writing, for one owner.
--
-- KEYS[1]  lock      hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- KEYS[2]  note      the writers' note: see the prelude
-- KEYS[3]  other     the readers' note
-- ARGV[1]  field     see the prelude: "<owner>:write", with a number that never had a hold
-- ARGV[2]  behind    see the prelude
-- ARGV[3]  note_ms   see the prelude
-- ARGV[4]  again_ms  see the prelude
-- ARGV[5]  lease_ms  integer > 0; how long the hold lives unless renewed
--
-- Returns  {1, -2, ''}  taken, with a count of one unless an earlier run took it
--          {0, n, b}  not taken, behind b; ask again in n ms (-1: not known), when the first of these is due: a note ends, the
--                    lock ends, or this waiter's note has to be extended. (The waiter cannot rely on messages: a reader that
--                    died sends none, and a reader that leaves while others remain may shorten the lock's TTL without one.)
--
-- Keeps    every hold, also that of a reader whose own key is gone. Such a reader may still have the lock, since Redisson's
--          multi-lock and `expire` extend only the hash. So a writer waits until the hash ends. (But the release of another
--          reader removes such a reader, as in Redisson: see rw_read_release.) The hash never exists without a TTL: a lock
--          that cannot be given one is not taken
-- Twice    the second run lengthens a shorter TTL, and changes nothing else
-- Errors   WRONGTYPE for a hash that is not a read-write lock
local field, lease_ms = ARGV[1], ARGV[5]

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
-- If an earlier run of this request took the lock, the second only extends it.
if mode == 'write' and redis.call('hexists', KEYS[1], field) == 1 then
  if left_ms < tonumber(lease_ms) then
    redis.call('pexpire', KEYS[1], lease_ms)
  end
  return granted()
end
-- A noted reader goes first, until its note ends.
if behind ~= '' then
  return mode and no_lock('read-write lock', mode) or refused(other_ms)
end
if mode then
  return no_lock('read-write lock', mode) or refused(left_ms)
end

redis.call('hset', KEYS[1], 'mode', 'write', field, 1)
-- Without a TTL the lock would never be free again, so a hold that gets none is removed.
local kept = redis.pcall('pexpire', KEYS[1], lease_ms)
if type(kept) == 'table' then
  redis.call('del', KEYS[1])
  return kept
end
return granted()
