-- notes: whose turn it is among waiting readers and writers. Each side has a key, its note, with one of its waiters. Precedes
-- both acquire scripts of read-write locks.
--
-- KEYS[2]  note      string: the noted waiter of this side; expires when that waiter counts as gone
-- KEYS[3]  other     the same of the other side
-- ARGV[1]  waiter    the field of the hold that this waiter wants; stays the same until a request gets no reply, then a new
--                    one is used
-- ARGV[2]  behind    the waiter of the other side that was noted when this one first asked; that waiter goes first for as
--                    long as it is noted. '?' in a first request, and in one that follows a request without
--                    a reply; '' if this waiter lets nobody go first: it is behind nobody, has waited for 10 s (`PRECEDENCE`),
--                    or is `readers_first`
-- ARGV[3]  note_ms   integer >= 0; how long the note lives, if this request makes or extends it; 0: it does neither
-- ARGV[4]  again_ms  integer > 0; after how long this waiter asks again, which extends its note

local waiter, behind, note_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

-- These reads come first: if a key holds another type, they fail before anything is written.
local noted, other = redis.call('get', KEYS[2]), redis.call('get', KEYS[3])
-- The time in ms until each note is gone. A note without a TTL is not ours (PTTL -1 makes 0 here), and counts as none.
local noted_ms = noted and redis.call('pttl', KEYS[2]) + 1
local other_ms = other and redis.call('pttl', KEYS[3]) + 1
noted, other = noted_ms ~= 0 and noted, other_ms ~= 0 and other

if behind == '?' then
  behind = other or ''
elseif behind ~= other then
  behind = ''
end

-- The reply to a waiter that has to wait. `ms` is the time until the obstacle ends (-1: not known). The waiter asks again
-- after `ms`. If this run makes or extends the waiter's own note, it asks after `again_ms` if that is earlier. If another waiter
-- of its side is noted, it asks when that note ends if that is earlier. If no time is known, the reply is -1.
local function refused(ms)
  local look_ms = noted and noted_ms
  if note_ms > 0 and (not noted or noted == waiter) then
    -- `pcall`: if Redis has no memory left, nobody is noted, and the order is lost rather than the request.
    redis.pcall('set', KEYS[2], waiter, 'px', note_ms)
    look_ms = tonumber(ARGV[4])
  end
  if look_ms and (ms < 0 or look_ms < ms) then
    ms = look_ms
  end
  return {0, ms, behind}
end

