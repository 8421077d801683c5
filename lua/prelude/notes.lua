-- notes: whose turn it is among the readers and writers that wait, one of each side being noted. In front of both
-- acquire scripts.
--
-- KEYS[2]  note      string: the waiter of this side that is noted; lives until it counts as gone
-- KEYS[3]  other     the same of the other side
-- ARGV[1]  waiter    the field of the hold that it asks for; the same in all requests of a waiter, but new after one without
--                    a reply
-- ARGV[2]  behind    the waiter of the other side that was noted when this one first asked, which goes first for as long
--                    as it is noted; '?' if this one first asks now, '' if it is behind nobody
-- ARGV[3]  note_ms   integer >= 0; how long its note lives, if it makes one
-- ARGV[4]  again_ms  integer > 0; after how long it prolongs its note

local waiter, behind, note_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- First, because they refuse keys of another type.
local noted, other = redis.call('get', KEYS[2]), redis.call('get', KEYS[3])
-- In how many ms they are gone. One that would never end is nobody's.
local noted_ms = noted and redis.call('pttl', KEYS[2]) + 1
local other_ms = other and redis.call('pttl', KEYS[3]) + 1
noted, other = noted_ms ~= 0 and noted, other_ms ~= 0 and other

if behind == '?' then
  behind = other or ''
elseif behind ~= other then
  behind = ''
end

-- The answer to one that has to wait: in ms it is worth asking again, -1 if that is not known.
local function refused(ms)
  local look_ms = noted and noted_ms
  if note_ms > 0 and (not noted or noted == waiter) then
    -- Without the memory for it there is no order.
    redis.pcall('set', KEYS[2], waiter, 'px', note_ms)
    look_ms = tonumber(ARGV[4])
  end
  if look_ms and (ms < 0 or look_ms < ms) then
    ms = look_ms
  end
  return {0, ms, behind}
end

