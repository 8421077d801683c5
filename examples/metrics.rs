//! Serves the metrics of a client's locks in the text format of Prometheus, on <http://127.0.0.1:9899/metrics>.
//!
//! ```text
//! cargo run --package recipes --example metrics             until interrupted
//! cargo run --package recipes --example metrics -- --once   prints it once, and ends
//! ```
//!
//! Starts its own redis-server unless `REDIS_URL` is set. Four threads lock two names, for something to count.

#![expect(clippy::print_stdout, reason = "it reports to whoever runs it")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use std::{env, thread};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use redlatch::{Client, Config, Metrics};

use shared::{Result, redis_server};

mod shared;

fn main() -> Result<()> {
    let (_server, url) = redis_server()?;
    let prometheus = PrometheusBuilder::new()
        .set_buckets(&[0.001, 0.01, 0.1, 1.0, 10.0, 60.0])?
        .install_recorder()?;
    // The label of `stock:42` and `stock:43` is `stock`: one series per number would be too many.
    let label = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
    let metrics = Metrics::new("stock", label);
    let client = Client::open(Config::new(url).observer(metrics.clone()))?;
    for n in 0..4 {
        let lock = client.mutex(format!("stock:{}", n % 2));
        thread::spawn(move || -> redlatch::Result<()> {
            loop {
                let guard = lock.lock()?;
                thread::sleep(Duration::from_millis(1));
                guard.unlock()?;
            }
        });
    }
    if env::args().any(|arg| arg == "--once") {
        thread::sleep(Duration::from_millis(300));
        print!("{}", scraped(&client, &metrics, &prometheus));
        return Ok(());
    }
    let listener = TcpListener::bind("127.0.0.1:9899")?;
    println!("http://{}/metrics", listener.local_addr()?);
    for stream in listener.incoming() {
        answer(stream?, &scraped(&client, &metrics, &prometheus)).ok();
    }
    Ok(())
}

fn scraped(client: &Client, metrics: &Metrics, prometheus: &PrometheusHandle) -> String {
    metrics.record(&client.stats());
    prometheus.render()
}

fn answer(mut stream: TcpStream, text: &str) -> std::io::Result<()> {
    let lines = BufReader::new(stream.try_clone()?).lines();
    // Read up to the empty line that ends the request.
    lines.map_while(std::io::Result::ok).find(String::is_empty);
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
}
