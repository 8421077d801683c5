-- lock_state: whether somebody has the lock, and until when.
--
-- KEYS[1]  lock     hash: owner -> hold count
--
-- Returns  n >= -1  somebody has it; n ms until the lease runs out, -1 if it never does
--          -2       nobody has it
--
-- Keeps    everything
-- Errors   WRONGTYPE for a key that holds no such lock
local left_ms = redis.call('pttl', KEYS[1])
return left_ms ~= -2 and no_lock('lock') or left_ms
