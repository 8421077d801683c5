-- guarded: ends the script with an error unless the given hold is in force. Precedes `guarded_call` or a user's script; the
-- keys and arguments of the command or script follow those named here.
--
-- KEYS[1]  lock   hash: owner -> hold count; of a permit, sorted set: id -> epoch ms at which it expires
-- KEYS[2]  life   string that lives as long as a read hold; for any other hold, KEYS[1] again
-- ARGV[1]  hold   the field of the hash, or the id of the permit
-- ARGV[2]  kind   "permit", or "lock"
--
-- Returns  if the hold is not in force, an error with the code NOTHELD, and nothing else is executed. The error's text begins
--          with "taken" if the lock's key exists, since somebody else then probably has the lock; otherwise (and for any
--          permit) with "gone". It ends with the hold (a permit's id in hexadecimal digits), so that no error of the user's
--          script is mistaken for this error
--
-- Keeps    all keys as they are. The code below is joined to one line and put before a user's script, so it has no comments
do
  local held
  if ARGV[2] == 'permit' then
    local time = redis.call('time')
    held = redis.pcall('zscore', KEYS[1], ARGV[1])
    if type(held) ~= 'table' then
      held = (tonumber(held or 0) > time[1] * 1000 + math.floor(time[2] / 1000)) and 1 or 0
    end
  else
    held = redis.pcall('hexists', KEYS[1], ARGV[1])
    if held == 1 and KEYS[2] ~= KEYS[1] then
      held = redis.pcall('exists', KEYS[2])
    end
  end
  if type(held) == 'table' and not string.find(held.err, 'WRONGTYPE', 1, true) then
    return held
  end
  if held ~= 1 then
    local taken = ARGV[2] ~= 'permit' and redis.call('exists', KEYS[1]) == 1
    local hold = ARGV[2] ~= 'permit' and ARGV[1] or string.gsub(ARGV[1], '.', function(c)
      return string.format('%02x', string.byte(c))
    end)
    return redis.error_reply((taken and 'NOTHELD taken ' or 'NOTHELD gone ') .. hold)
  end
end
