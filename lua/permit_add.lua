-- permit_add: add permits, or remove some.
--
-- KEYS[1]    permits   string: how many are available
-- KEYS[2]    timeouts  sorted set: id -> epoch ms at which its permit expires; 922337203685477: never
-- KEYS[3]    channel   where those who wait listen
-- KEYS[4]    request   string: says that this request was carried out
-- KEYS[5…n]  answered  keys of earlier requests whose answers have arrived, at most four
-- ARGV[1]    more      integer; fewer, if negative
-- ARGV[2]    keep_ms   integer > 0; how long `request` is kept
--
-- Returns    1         done
--
-- Keeps      acquired permits: so the available number may become negative; the TTL; up to 1,000 expired permits are returned,
--            but count for nothing if the string was deleted
-- Twice      the second run changes nothing
-- Errors     WRONGTYPE for a key of another type
local more, keep_ms = ARGV[1], ARGV[2]

if redis.call('get', KEYS[4]) then
  return 1
end
if #KEYS > 4 then
  redis.pcall('del', unpack(KEYS, 5))
end
local wrong, available, _, over, back = look()
if wrong then
  return wrong
end
-- If the number exists, this call removes `back` of the expired permits and adds `back` to the number; later calls do the same
-- with the other `over - back`. If the number was deleted, no expired permit may count, so `back` is not added. INCRBY creates
-- the number here, and later calls will add `over - back` to it, so this is subtracted in advance.
local gained = available and more + back or more - (over - back)
local left = redis.call('incrby', KEYS[1], string.format('%.0f', gained))
redis.call('set', KEYS[4], 1, 'px', keep_ms)
remove_expired(back)
if gained > 0 then
  notify(left)
end
return 1
