-- lock: tells a lock's hash from any other hash. Precedes each script that uses it.
--
-- KEYS[1]  lock  hash: owner -> hold count; of a read-write lock also mode -> read or write

-- A hash of up to FEW fields is checked whole. In a larger hash one random field is enough, except if the hash is to be
-- deleted, if HRANDFIELD fails, or if that field is `mode`: then up to about SOME fields are checked.
local FEW, SOME = 8, 128

-- Whether a field is a hold's: "<uuid>:<number>", followed by ":write" for a write hold, with a count as its value. Redisson's
-- transactions append ':' and a number in hexadecimal digits to either form.
local function is_hold(field, count)
  local behind = string.match(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+(.*)$')
  local is_known = behind == '' or behind == ':write' or behind and string.find(string.gsub(behind, '^:write', ''), '^:%x+$')
  return is_known and string.find(count, '^%d+$')
end

local function not_a(kind)
  return redis.error_reply('WRONGTYPE the key holds a hash that is not a ' .. kind)
end

-- Returns the error for a hash that is not a lock of this kind ("lock" or "read-write lock"), or nil. The fields decide and
-- not the TTL, which Redisson can remove. A single field of another application's hash is enough to show that the hash is no
-- lock, unless that field looks like a lock's. The argument `mode` is the lock's mode, if the script has read it. `is_deleted`:
-- the script will delete the hash, so more fields are checked: one that looks like a hold proves nothing about the others.
local function no_lock(kind, mode, is_deleted)
  local count, fields = redis.call('hlen', KEYS[1]), nil
  -- `pcall`: for a user without the right to HRANDFIELD, more fields decide.
  local one = count > FEW and not is_deleted and redis.pcall('hrandfield', KEYS[1])
  if type(one) == 'string' and one ~= 'mode' then
    fields = {one, '1'}
  elseif count > SOME then
    fields = redis.call('hscan', KEYS[1], '0', 'count', SOME)[2]
  else
    fields = redis.call('hgetall', KEYS[1])
  end
  mode = mode or #fields < 2 * count and redis.call('hget', KEYS[1], 'mode')
  local holds = 0
  for i = 1, #fields, 2 do
    if fields[i] == 'mode' and (fields[i + 1] == 'read' or fields[i + 1] == 'write') then
      mode = fields[i + 1]
    elseif is_hold(fields[i], fields[i + 1]) then
      holds = holds + 1
    else
      holds = -math.huge
    end
  end
  local is_rw = mode == 'read' or mode == 'write'
  -- HSCAN may find no field in a large hash from which most were removed. Without a field to check, the hash passes as
  -- a lock.
  if #fields > 0 and holds <= 0 then
    return not_a(kind)
  elseif #fields > 0 and kind ~= 'lock' and not is_rw then
    return redis.error_reply('WRONGTYPE the key holds a lock of another kind')
  elseif is_rw and kind == 'lock' then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
  end
end

