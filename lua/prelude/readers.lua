--!df flags=allow-undeclared-keys
-- readers: which readers of a read-write lock are alive. In front of `rw_read_release`, which removes dead readers. It is the
-- first prelude there, because Dragonfly reads a flag only in the first line of a script.
--
-- Redisson's format has a key for each read hold. The client does not know the readers, since only the hash lists them, so it
-- cannot name these keys in KEYS. They are in the lock's slot, and are the only undeclared keys. Dragonfly allows such keys
-- only with the flag in the first line; for other servers the flag is a comment.

-- How many keys of holds this run may still read, so that a huge hash does not block the server.
local holds_to_look_at = 1000

-- How long a reader lives on: -2 if it is dead, nil if the answer would take too many reads. PTTL is 0 in the last
-- millisecond of a key, so 0 still means alive.
local function life_ms(prefix, reader, count)
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

