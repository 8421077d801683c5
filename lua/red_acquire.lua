-- red_acquire: take the lock on one master, as a part of a lock that a majority of masters keeps.
--
-- KEYS[1]  lock      hash: owner -> hold count
-- ARGV[1]  owner     "<client uuid>:<number>", a number that was never sent to this node
-- ARGV[2]  lease_ms  integer > 0; how long the hold lives unless renewed
-- ARGV[3]  up_s      integer >= 0; a server takes part only if it has certainly been up for longer; 0 for any server
-- ARGV[4]  run_id    if `up_s` is not 0: the run id that the server must have; empty for any
--
-- Returns  nil       taken, with a count of one
--          n >= -1   somebody has the lock, perhaps this owner; n ms until that lease runs out, -1 if it never does
--
-- Keeps    at most one owner in the hash; the hash never exists without a TTL: a lock that cannot be given one is not taken
-- Twice    the second run takes nothing. So if two of the masters are one server, the second request finds this owner, and the
--          server counts once
-- Errors   WRONGTYPE for a key that holds no such lock; RESTARTED for a server that was restarted too recently, or is
--          another one
local owner, lease_ms, up_s, run_id = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local left_ms = redis.call('pttl', KEYS[1])
if left_ms ~= -2 then
  return no_lock('lock') or left_ms
end
if up_s ~= '0' then
  local info = redis.call('info', 'server')
  local its = string.match(info, 'run_id:(%w+)')
  if run_id ~= '' and run_id ~= its then
    return redis.error_reply('RESTARTED as ' .. its .. ', and takes no part until it has been known as that for ' .. up_s .. ' s')
  end
  -- Redis rounds the present time and the time of its start to seconds, so it may have been up for almost a second less than
  -- it says.
  local up = string.match(info, 'uptime_in_seconds:(%d+)')
  if tonumber(up) <= tonumber(up_s) then
    return redis.error_reply('RESTARTED ' .. up .. ' s ago, and takes no part until it has been up for more than ' .. up_s .. ' s')
  end
end
redis.call('hset', KEYS[1], owner, 1)
-- Without a TTL the lock would never be free again, so a hold that gets none is removed.
local kept = redis.pcall('pexpire', KEYS[1], lease_ms)
if type(kept) == 'table' then
  redis.call('hdel', KEYS[1], owner)
  return kept
end
return nil
