//! **A database that rejects late writers.** A holder that was stopped, or cut off, for
//! longer than its lease goes on as if it still had the lock, and no lock can keep it
//! from writing. The row can: it keeps the token of its last writer, and accepts no
//! older one.
//!
//! The database decides, so it does not matter whether the holder knows by now that it
//! has lost the lock. `<` allows one write per hold; to write a row several times under
//! one lock, use `<=`. With several rows, this `UPDATE` comes first in the transaction,
//! which is rolled back if it changes no row. The SQL works with any database.
//!
//! Tokens of a name are counted in one Redis, so all writers of a row use the same. If
//! Redis loses its data, tokens continue from its clock, above those in the table. A
//! token is smaller than the table's only if that clock went back as well, or if a
//! Redisson client takes the lock next, which starts at 1. Then nobody can write until
//! tokens are above those in the table again: set the counter to the greatest of them:
//! `SET redisson_lock_token:{account:7} 1790000000000000`.

use redlatch::Client;
use rusqlite::Connection;

pub const TABLE: &str = "CREATE TABLE account (
    id INTEGER PRIMARY KEY,
    balance INTEGER NOT NULL,
    token BIGINT NOT NULL DEFAULT 0
)";

/// Whether a change was written.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    Written,
    /// A later holder has written since, so the value read here is out of date: start
    /// again, or give up.
    Overtaken,
}

/// `change` gets the balance and returns the new one.
pub fn change(
    client: &Client,
    db: &Connection,
    id: i64,
    change: impl FnOnce(i64) -> i64,
) -> Result<Change, Box<dyn std::error::Error>> {
    let guard = client.fenced_lock(format!("account:{id}")).lock()?;
    let token = i64::try_from(guard.token())?;
    let read = "SELECT balance FROM account WHERE id = ?1";
    let balance = db.query_row(read, [id], |row| row.get(0))?;
    let balance = change(balance);
    let write = "UPDATE account SET balance = ?2, token = ?3 WHERE id = ?1 AND token < ?3";
    match db.execute(write, (id, balance, token))? {
        0 => Ok(Change::Overtaken),
        _ => Ok(Change::Written),
    }
}
