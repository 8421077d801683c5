-- rw_read_acquire: take the lock for reading, for one owner.
--
-- KEYS[1]  lock         hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- KEYS[2]  note         the readers' note: see the prelude
-- KEYS[3]  other        the writers' note
-- KEYS[4]  hold         "{lock}:<owner>:rwlock_timeout:1": a string that lives as long as this hold
-- ARGV[1]  owner        see the prelude: "<client uuid>:<number>", a number that never had a hold
-- ARGV[2]  behind       see the prelude
-- ARGV[3]  note_ms      see the prelude
-- ARGV[4]  again_ms     see the prelude
-- ARGV[5]  lease_ms     integer > 0; how long the hold lives unless renewed
-- ARGV[6]  write_field  "<owner>:write" of the write hold under which this thread reads, or ''
--
-- Returns  {1, n, ''}   taken, with a count of one; before, the lock would have ended in n ms (-1: never, -2: free)
--          {0, n, b}    not taken, behind b; ask again in n ms (-1: not known): a writer's lease or a note ends, or this
--                       waiter's own note has to be extended
--
-- Keeps    every other hold, and every TTL that is longer; the hash never exists without a TTL: a lock that cannot be given
--          one is not taken
-- Twice    the second run lengthens a shorter TTL; unless somebody writes, it also removes a note that a reader has made since
-- Errors   WRONGTYPE for a hash that is not a read-write lock, and for a hold of another type
local owner, lease_ms, write_field = ARGV[1], ARGV[5], ARGV[6]

-- These reads come first: if a key holds another type, they fail before anything is written.
local mode = redis.call('hget', KEYS[1], 'mode')
redis.call('get', KEYS[4])

local left_ms = redis.call('pttl', KEYS[1])
local free = left_ms == -2
if not free and mode ~= 'read' and mode ~= 'write' then
  return no_lock('read-write lock') or not_a('read-write lock')
end

local again = not free and redis.call('hexists', KEYS[1], owner) == 1
-- Beside a writer only the writer's own thread may read. If nobody writes, a noted writer goes first, unless an earlier run of
-- this request took the hold (`again`).
if not again and mode == 'write' then
  if write_field == '' or redis.call('hexists', KEYS[1], write_field) == 0 then
    return no_lock('read-write lock', mode) or refused(left_ms)
  end
elseif not again and behind ~= '' then
  return mode and no_lock('read-write lock', mode) or refused(other_ms)
elseif not again and not free then
  local wrong = no_lock('read-write lock', mode)
  if wrong then
    return wrong
  end
end

-- Removes what this run has written, since a hold without a TTL, or a field without its string, must not stay.
local function given_up(refusal)
  if free then
    redis.call('del', KEYS[1])
  elseif not again then
    redis.call('hdel', KEYS[1], owner)
  end
  if not again then
    redis.call('del', KEYS[4])
  end
  return refusal
end

-- The hold's string is the first write, so that a lack of memory fails here. A field without this string would be a dead
-- reader.
if not again or redis.call('pttl', KEYS[4]) < tonumber(lease_ms) then
  redis.call('set', KEYS[4], '1', 'px', lease_ms)
end
local kept
if free then
  kept = redis.pcall('hset', KEYS[1], 'mode', 'read', owner, 1)
else
  kept = redis.pcall('hset', KEYS[1], owner, 1)
end
if type(kept) ~= 'table' and left_ms < tonumber(lease_ms) then
  kept = redis.pcall('pexpire', KEYS[1], lease_ms)
end
if type(kept) == 'table' then
  return given_up(kept)
end
if noted and mode ~= 'write' then
  -- The noted reader can join now as well. So the note is removed, and no writer stays behind it.
  redis.call('del', KEYS[2])
end
return {1, left_ms, ''}
