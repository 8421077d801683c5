//! A lock as programs write it by hand, without a library.

use redis::{Connection, Value};

use super::{ask, connection_to, evalsha};

const RELEASE: &str = "
if redis.call('get', KEYS[1]) == ARGV[1] then
  return redis.call('del', KEYS[1])
end
return 0";

/// `SET NX PX`, and a script that compares and deletes, over its own connection.
pub(crate) struct ByHand {
    connection: Connection,
    set: Vec<u8>,
    release: Vec<u8>,
}

impl ByHand {
    pub(crate) fn new(url: &str, name: &str) -> Self {
        let mut connection = connection_to(url);
        let set = redis::cmd("SET")
            .arg(name)
            .arg("token")
            .arg(&["NX", "PX", "30000"])
            .get_packed_command();
        let release = evalsha(&mut connection, RELEASE, &[name], &["token"]);
        Self {
            connection,
            set,
            release,
        }
    }

    pub(crate) fn pair(&mut self) {
        assert_eq!(ask(&mut self.connection, &self.set), Value::Okay);
        assert_eq!(ask(&mut self.connection, &self.release), Value::Int(1));
    }
}
