--!df flags=allow-undeclared-keys
-- readers: which readers of a read-write lock live. In front of the scripts that drop those that died.
--
-- Redisson's format has a key for each read hold, and only the hash says which readers there are. These keys are in the
-- lock's slot, but not among KEYS: the only ones that a script reaches so. Dragonfly wants the flag above for that; for
-- other servers it is a comment.

-- How many holds one call looks at.
local holds_to_look_at = 1000

-- How long a reader lives on: -2 if it is dead, nil if that would take too many looks. In its last millisecond it has 0 left.
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

