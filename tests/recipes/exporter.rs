//! What the observer for the `metrics` crate records.

use metrics_exporter_prometheus::PrometheusBuilder;
use redlatch::{Client, Metrics};

use crate::support::{Server, timed, unique};
use crate::{open, settings};

timed!(what_happens_is_recorded_under_labels_that_the_user_gives);
fn what_happens_is_recorded_under_labels_that_the_user_gives() {
    let server = Server::start();
    let label = |name: &str| name.split(':').next().unwrap().to_owned();
    let client = Client::open(settings(&server).observer(Metrics::new(label))).unwrap();
    let name = unique("stock:42");
    let recorder = PrometheusBuilder::new().build_recorder();
    let prometheus = recorder.handle();
    ::metrics::with_local_recorder(&recorder, || {
        client.mutex(&name).lock().unwrap().unlock().unwrap();
        let guard = open(&server).mutex(&name).lock().unwrap();
        assert!(client.mutex(&name).try_lock().unwrap().is_none());
        drop(guard);
        Metrics::record(&client.stats());
    });
    let text = prometheus.render();
    for line in [
        "redlatch_acquired_total{kind=\"mutex\",lock=\"stock\",outcome=\"granted\"} 1",
        "redlatch_acquired_total{kind=\"mutex\",lock=\"stock\",outcome=\"busy\"} 1",
        "redlatch_wait_seconds_count{kind=\"mutex\",lock=\"stock\"} 1",
        "redlatch_hold_seconds_count{kind=\"mutex\",lock=\"stock\"} 1",
        "redlatch_held 0",
        "redlatch_waiting 0",
        "redlatch_renewal_lateness_seconds 0",
    ] {
        assert!(
            text.lines().any(|its| its == line),
            "{line} is missing: {text}"
        );
    }
    assert!(!text.contains(&name), "{text}");
}
