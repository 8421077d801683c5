-- rw_read_acquire: take the lock for reading, for one owner.
--
-- KEYS[1]  lock         hash: mode -> read or write, owner -> its read holds, "<owner>:write" -> its write holds
-- KEYS[2]  hold         string that lives as long as this hold: "{lock}:<owner>:rwlock_timeout:1"
-- KEYS[3]  writers      channel that waiting writers subscribe to; being there is all they say on it
-- ARGV[1]  owner        "<client uuid>:<number>", a number never used before
-- ARGV[2]  lease_ms     integer > 0; how long the hold lives unless renewed
-- ARGV[3]  write_field  "<owner>:write" of the write hold this is to be taken below, or ''
-- ARGV[4]  passes_over  writers that wait go first if there are more of them than this; '' if none ever does
--
-- Returns  {1, n, w}    taken, with a count of one; the lock would have ended in n ms before (-1: never, -2: free)
--          {0, n, w}    not taken; ask again in n ms: a writer's lease runs out then (-1: never), or a waiting
--                       writer, who may be gone as soon as its connection, is to be looked for again
--                       w writers wait; -1 if they were not counted. Not taken and not counted: somebody writes
--
-- Keeps    every other hold, and every TTL that is longer; the hash never exists without a TTL: a lock that cannot
--          be given one is not taken; a hash that is not a read-write lock, and a hold of another type, answered
--          with a WRONGTYPE error; run twice it changes nothing more
local owner, lease_ms, write_field, passes_over = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- First, because these two refuse keys of another type.
local mode = redis.call('hget', KEYS[1], 'mode')
redis.call('get', KEYS[2])

local left_ms = redis.call('pttl', KEYS[1])
local free = left_ms == -2
if not free and mode ~= 'read' and mode ~= 'write' then
  return redis.error_reply('WRONGTYPE the key holds a hash that is not a read-write lock')
end

local waiting = -1
local again = not free and redis.call('hexists', KEYS[1], owner) == 1
if not again and mode == 'write' then
  if write_field == '' or redis.call('hexists', KEYS[1], write_field) == 0 then
    return {0, left_ms, -1}
  end
elseif not again and passes_over ~= '' then
  -- Without the right to ask, there are no writers ahead.
  local listeners = redis.pcall('pubsub', 'numsub', KEYS[3])[2]
  if type(listeners) == 'number' then
    waiting = listeners
  end
  if waiting > tonumber(passes_over) then
    if free then
      return {0, 0, waiting}
    end
    return {0, left_ms < 0 and 50 or math.min(left_ms, 50), waiting}
  end
end
if not again and left_ms == -1 then
  -- No lock is left like this, and a stranger's hash with a mode of its own would be given an end here. Of a large
  -- one looking at some fields is enough.
  local fields = redis.call('hscan', KEYS[1], '0', 'count', 128)[2]
  for i = 1, #fields, 2 do
    if fields[i] ~= 'mode' and not string.find(fields[i], '^%x+%-%x+%-%x+%-%x+%-%x+:') then
      return redis.error_reply('WRONGTYPE the key holds a hash that is not a read-write lock')
    end
  end
end

local function given_up(refusal)
  if free then
    redis.call('del', KEYS[1])
  elseif not again then
    redis.call('hdel', KEYS[1], owner)
  end
  if not again then
    redis.call('del', KEYS[2])
  end
  return refusal
end

-- First of the writes: what memory refuses is refused here. A field without a live hold would be a dead reader.
if not again or redis.call('pttl', KEYS[2]) < tonumber(lease_ms) then
  redis.call('set', KEYS[2], '1', 'px', lease_ms)
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
return {1, left_ms, waiting}
