//! The recipes of the guide, each in a file of its own and run once.
//!
//! ```text
//! cargo run --package recipes --example recipes    a redis-server of its own, or that of REDIS_URL
//! ```

#![expect(clippy::print_stdout, reason = "it reports to whoever runs it")]
#![expect(unreachable_pub, reason = "recipes are copied from here")]

use std::time::Duration;

use redlatch::{CancelToken, Client};

mod cron;
mod from_async;
mod from_set_nx;
mod hand_over;
mod health;
mod leader;
mod migrations;
mod pool;
#[path = "../shared/mod.rs"]
mod shared;
mod shutdown;
mod sql;
mod stampede;
mod web;
mod without_redis;

fn main() -> shared::Result<()> {
    let (_server, url) = shared::redis_server()?;
    let client = Client::open(url)?;
    let done = cron::every_minute(&client, || println!("cron: this host writes the report"))?;
    let again = cron::every_minute(&client, || println!("cron: a second time"))?;
    println!("cron: done {done}, again {again}");
    let migrated =
        migrations::migrate(&client, 3, || 1, |from| println!("migrations: from {from}"));
    println!("migrations: {}", migrated.map_err(|err| err.to_string())?);
    let (stop, mut turns_left) = (CancelToken::new(), 3);
    leader::lead(&client, Duration::from_secs(60), &stop, |_| {
        turns_left -= 1;
        if turns_left == 0 {
            stop.cancel();
        }
        turns_left > 0
    })?;
    println!("leader: has led");
    let ticket = hand_over::accept(&client, "order:7")?.unwrap_or_default();
    let done = hand_over::finish(&client, &ticket, |token| println!("hand_over: by {token}"))?;
    println!("hand_over: done {done}");
    let (status, body) = health::probe(&client);
    println!("health: {status}, {body}");
    let pool = pool::open(&client)?;
    println!("pool: {:?}", pool::call_service(&pool, || "an answer")?);
    println!(
        "stampede: {}",
        stampede::cached(&client, "page", || None, || "a page")
    );
    let db = rusqlite::Connection::open_in_memory()?;
    db.execute(sql::TABLE, ())?;
    db.execute("INSERT INTO account (id, balance) VALUES (7, 100)", ())?;
    let change = sql::change(&client, &db, 7, |balance| balance - 30);
    println!("sql: {:?}", change.map_err(|err| err.to_string())?);
    println!("web: {}", web::change_order(&client, 4711, || {}));
    let sold = without_redis::sell(&client.mutex("stock:42"), &mut 3)?;
    println!("without_redis: sold {sold}, here with redis");
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let sum = runtime.block_on(from_async::with_lock(&client, "async".into(), || 20 + 22))?;
    let guard = runtime.block_on(from_async::lock(&client, "async".into()))?;
    println!("from_async: {sum}, and {} is held", guard.name());
    drop(guard);
    let lock = client.mutex("moving");
    let guard = from_set_nx::lock_beside_set_nx(&lock, Duration::from_secs(1))?;
    println!("from_set_nx: held {}", guard.is_some());
    drop(guard);
    let closing = shutdown::close_on_signal(&client)?;
    signal_hook::low_level::raise(signal_hook::consts::SIGTERM)?;
    closing.join().map_err(|_| "it panicked")?;
    std::thread::sleep(Duration::from_millis(1));
    println!(
        "shutdown: the client is closed: {}",
        client.mutex("any").try_lock().is_err()
    );
    Ok(())
}
