-- lock: whether a hash is a lock's. In front of each script that may find another hash.
--
-- KEYS[1]  lock  hash: owner -> hold count; of a read-write lock also mode -> read or write

-- A hash of more fields is judged by one at random, and a larger one never by all.
local FEW, SOME = 8, 128

-- Whether this is a hold, "<uuid>:<number>" and for one that writes ":write" behind it, and how often its owner has it. A
-- transaction of Redisson's has its number in hexadecimal digits at the end.
local function is_hold(field, count)
  local behind = string.match(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+(.*)$')
  local is_known = behind == '' or behind == ':write' or behind and string.find(string.gsub(behind, '^:write', ''), '^:%x+$')
  return is_known and string.find(count, '^%d+$')
end

local function not_a(kind)
  return redis.error_reply('WRONGTYPE the key holds a hash that is not a ' .. kind)
end

-- The refusal of a hash that is not a lock of this kind, "lock" or "read-write lock", or nil. Fields decide and not the TTL,
-- which Redisson can remove. All of a stranger's fields show it, except for a mode. `mode` is the lock's, if the script has
-- read it; `is_deleted` if the hash is about to be, so that more of it is looked at.
local function no_lock(kind, mode, is_deleted)
  local count, fields = redis.call('hlen', KEYS[1]), nil
  -- A user without the right to ask for one at random asks for more.
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
  -- The part of a large hash that most have left may be empty.
  if #fields > 0 and (holds <= 0 or kind ~= 'lock' and not is_rw) then
    return not_a(kind)
  elseif is_rw and kind == 'lock' then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
  end
end

