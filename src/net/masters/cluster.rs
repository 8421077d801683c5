//! The nodes of a cluster: any of them says who has which slot.
//!
//! The candidates are the masters, their replicas, and always the addresses of the URL, since all other nodes may have
//! been replaced.

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use super::Masters;
use super::table::shards;
use crate::config::server::Address;
use crate::error::{named, wrong_url};
use crate::net::slot::SLOTS;
use crate::net::socket::dial::Dial;
use crate::net::socket::{Duplex, LARGEST_MAP};
use crate::report::report;

impl Masters {
    /// Asks a node who has which slot.
    pub(super) fn ask_node(
        &self,
        address: &Address,
        mut connection: Duplex,
        dial: &Dial,
    ) -> RedisResult<()> {
        connection.reader.limit(LARGEST_MAP);
        let mut ask = |question: &[&str]| {
            connection.write("asking for the slots", &[question])?;
            let reply = connection.read(dial).and_then(Value::extract_error);
            reply.map_err(|err| match is_no_cluster(&err) {
                true => wrong_url(format!(
                    "{address} is not a node of a cluster: use redis://{address}/ for a single server"
                )),
                false => named(address, err),
            })
        };
        let reply = ask(&["CLUSTER", "SLOTS"])?;
        let wrong = |kind: std::io::ErrorKind, why: &str| {
            RedisError::from(std::io::Error::new(kind, format!("{address} {why}")))
        };
        let shards =
            shards(&reply, address, self.endpoint.server.is_encrypted).ok_or_else(|| {
                let why = "sent a reply to CLUSTER SLOTS that names no nodes of slots";
                wrong(std::io::ErrorKind::InvalidData, why)
            })?;
        if shards.is_empty() {
            let why = "knows of no slots: create the cluster first";
            return Err(wrong(std::io::ErrorKind::NotFound, why));
        }
        if self.sharded.get().is_none() {
            let answer = ask(&["PUBSUB", "SHARDNUMSUB", "redlatch"]);
            let sharded = knows_sharded(answer.map(drop))?;
            self.sharded.get_or_init(|| sharded);
        }
        connection.writer.shut_down();
        if self.table.write().learn(&shards) {
            self.record_change();
            report!(Debug, "{address} has named the nodes of the {SLOTS} slots");
        }
        Ok(())
    }
}

/// Whether a server has sharded channels, by its answer to `PUBSUB SHARDNUMSUB`. The result is kept for good, so an error
/// that leaves this open is returned, and another node is asked.
fn knows_sharded(answer: RedisResult<()>) -> RedisResult<bool> {
    let Err(err) = answer else {
        return Ok(true);
    };
    match err.kind() {
        // The server does not know the command.
        ErrorKind::Server(ServerErrorKind::ResponseError) => Ok(false),
        // This user may not ask. The error names `shardnumsub` if the server knows it. Redis 6 does not, and says `the
        // 'pubsub' command or its subcommand`.
        ErrorKind::Server(ServerErrorKind::NoPerm) => {
            let text = err.detail().unwrap_or_default().to_ascii_lowercase();
            if text.contains("shardnumsub") {
                Ok(true)
            } else if text.contains("or its subcommand") {
                Ok(false)
            } else {
                Err(err)
            }
        }
        _ => Err(err),
    }
}

/// Whether the server says that it is no node of a cluster.
fn is_no_cluster(err: &RedisError) -> bool {
    let detail = err.detail().unwrap_or_default();
    detail.contains("cluster support disabled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_does_not_know_the_command_has_no_sharded_channels() {
        for (answer, expected) in [
            ("*0\r\n", Some(true)),
            (
                "-ERR Unknown subcommand or wrong number of arguments for 'SHARDNUMSUB'. Try PUBSUB HELP.\r\n",
                Some(false),
            ),
            ("-ERR unknown command 'PUBSUB'\r\n", Some(false)),
            (
                "-NOPERM User u has no permissions to run the 'pubsub|shardnumsub' command\r\n",
                Some(true),
            ),
            (
                "-NOPERM this user has no permissions to run the 'pubsub' command or its subcommand\r\n",
                Some(false),
            ),
            ("-NOPERM this user may do nothing\r\n", None),
            ("-BUSY Redis is busy running a script.\r\n", None),
            ("-MASTERDOWN Link with MASTER is down\r\n", None),
            ("-TRYAGAIN later\r\n", None),
            ("-LOADING Redis is loading the dataset in memory\r\n", None),
            ("-CLUSTERDOWN The cluster is down\r\n", None),
            ("-ODD whatever it is\r\n", None),
        ] {
            let value = redis::parse_redis_value(answer.as_bytes()).expect("a reply");
            let found = knows_sharded(value.extract_error().map(drop));
            assert_eq!(found.ok(), expected, "{answer}");
        }
    }
}
