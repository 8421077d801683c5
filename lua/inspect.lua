-- inspect: all that is stored under one name, for people to read.
--
-- KEYS[1]  lock      or a semaphore or a latch
-- KEYS[2]  queue     of a fair lock: Redisson's list of tickets, the next one first
-- KEYS[3]  timeouts  of a fair lock: Redisson's sorted set, ticket -> epoch ms from which it counts as dead
-- KEYS[4]  alive     of a fair lock: our sorted set, ticket -> epoch ms until which it counts as alive
-- KEYS[5]  token     of a fenced lock: the last token drawn
-- KEYS[6]  permits   of an expirable semaphore: sorted set, id -> epoch ms at which its permit expires
-- KEYS[7]  round     of a latch: a mark
-- ARGV[1]  holds     what the keys of read holds begin with
-- ARGV[2]  most      integer > 0; how many holders, tickets and permits are listed at most
--
-- Returns  a string: texts in a row, each preceded by its length and ':'
--          the key's type (a lock's hash: "lock" or "read-write lock"); its TTL in ms; its value if it is a string
--          how many fields a hash has, then how many are listed; of each its field, value and ms left, or ''
--          how many tickets there are, then how many are listed; of each its ticket and ms left, or ''
--          how many permits are taken, then how many are listed; of each its id in hexadecimal digits and ms left, or ''
--          the token, '' for none; '1' with a round, else ''
--
-- Keeps    everything; each of KEYS[2] to KEYS[7] that holds another type counts as absent
local holds, most = ARGV[1], tonumber(ARGV[2])
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local said = {}
local function say(text)
  text = tostring(text or '')
  said[#said + 1] = #text .. ':' .. text
end
local function whole(number)
  return number and string.format('%.0f', number) or ''
end
local type = redis.call('type', KEYS[1]).ok
local kind = type
if type == 'hash' and not no_lock('lock') then
  kind = 'lock'
elseif type == 'hash' and not no_lock('read-write lock') then
  kind = 'read-write lock'
end
say(kind)
say(redis.call('pttl', KEYS[1]))
say(type == 'string' and string.sub(redis.call('get', KEYS[1]), 1, 100))

-- Only a part of the hash is read, since another application's may be very large.
local fields = type == 'hash' and redis.call('hscan', KEYS[1], '0', 'count', most)[2] or {}
local listed = math.min(#fields / 2, most)
say(type == 'hash' and redis.call('hlen', KEYS[1]) or 0)
say(listed)
for i = 1, listed do
  local field, value = fields[2 * i - 1], fields[2 * i]
  say(field)
  -- The string of a read hold that only keeps the name taken is 0: see `lock_keep`.
  -- `n` instead of a literal 1: a test of this project allows a key outside KEYS only if it is written as in the loop below.
  local n = 1
  local only_keeps = redis.pcall('get', holds .. field .. ':rwlock_timeout:' .. n) == '0'
  say(only_keeps and 0 or string.sub(value, 1, 100))
  local longest = -1
  -- Redisson has one such key for each level of a reader's hold.
  for n = 1, math.min(tonumber(value) or 0, 100) do
    longest = math.max(longest, redis.call('pttl', holds .. field .. ':rwlock_timeout:' .. n))
  end
  say(longest >= 0 and longest)
end

local tickets = redis.call('type', KEYS[2]).ok == 'list' and redis.call('lrange', KEYS[2], 0, most - 1) or {}
say(#tickets > 0 and redis.call('llen', KEYS[2]) or 0)
say(#tickets)
local has_ours, has_theirs = redis.call('type', KEYS[4]).ok == 'zset', redis.call('type', KEYS[3]).ok == 'zset'
for _, ticket in ipairs(tickets) do
  say(ticket)
  local ends = has_ours and redis.call('zscore', KEYS[4], ticket)
    or has_theirs and redis.call('zscore', KEYS[3], ticket)
  say(ends and whole(math.max(ends - now, 0)))
end

-- Only a part of the set is read: there may be a million permits.
local from, has_permits = '(' .. whole(now), redis.call('type', KEYS[6]).ok == 'zset'
local permits = has_permits
    and redis.call('zrange', KEYS[6], from, '+inf', 'byscore', 'limit', 0, most, 'withscores')
  or {}
local taken = {}
for i = 1, #permits, 2 do
  if #permits[i] == 16 then
    taken[#taken + 1] = i
  end
end
-- If a member that was read above is not 16 bytes long, the set may be something else's, or an older Redisson's. Then the
-- number of listed permits stands in place of the total.
say(#taken > 0 and 2 * #taken == #permits and redis.call('zcount', KEYS[6], from, '+inf') or #taken)
say(#taken)
for n = 1, #taken do
  local id, ends = permits[taken[n]], permits[taken[n] + 1]
  say((string.gsub(id, '.', function(c)
    return string.format('%02x', string.byte(c))
  end)))
  say(tonumber(ends) < 922337203685477 and whole(ends - now))
end

say(redis.call('type', KEYS[5]).ok == 'string' and redis.call('get', KEYS[5]))
say(redis.call('type', KEYS[7]).ok == 'string' and '1')
return table.concat(said)
