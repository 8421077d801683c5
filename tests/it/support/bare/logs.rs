//! Captures all log records of this process.

use std::sync::{Arc, Mutex, Once};

use super::process::locked;
use super::proxy::contains;

/// All records since the first call of [`logs`].
pub(crate) struct Logs {
    records: Mutex<Vec<(log::Level, String)>>,
    hooks: Mutex<Vec<(String, Hook)>>,
}

type Hook = Arc<dyn Fn(log::Level, &str) + Send + Sync>;

impl log::Log for Logs {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let (level, text) = (record.level(), record.args().to_string());
        locked(&self.records).push((level, text.clone()));
        let hooks: Vec<Hook> = locked(&self.hooks)
            .iter()
            .filter(|(fragment, _)| text.contains(fragment))
            .map(|(_, hook)| Arc::clone(hook))
            .collect();
        for hook in hooks {
            hook(level, &text);
        }
    }

    fn flush(&self) {}
}

impl Logs {
    /// The records that contain `fragment`; a unique lock name excludes the records of other tests.
    pub(crate) fn about(&self, fragment: &str) -> Vec<(log::Level, String)> {
        locked(&self.records)
            .iter()
            .filter(|(_, text)| text.contains(fragment))
            .cloned()
            .collect()
    }

    /// The number of records at `level` that contain `fragment`.
    pub(crate) fn count(&self, level: log::Level, fragment: &str) -> usize {
        let about = self.about(fragment);
        about.iter().filter(|(at, _)| *at == level).count()
    }

    /// Calls `hook` with every record that contains `fragment`, until [`unhook`](Self::unhook).
    pub(crate) fn hook(
        &self,
        fragment: &str,
        hook: impl Fn(log::Level, &str) + Send + Sync + 'static,
    ) {
        locked(&self.hooks).push((fragment.to_owned(), Arc::new(hook)));
    }

    /// Removes the hooks for `fragment` and drops what they own.
    pub(crate) fn unhook(&self, fragment: &str) {
        let mut hooks = locked(&self.hooks);
        let (gone, hooks_left) = std::mem::take(&mut *hooks)
            .into_iter()
            .partition(|(known, _)| known == fragment);
        *hooks = hooks_left;
        drop(hooks);
        drop::<Vec<_>>(gone);
    }
}

/// Installs the logger on the first call; earlier records are not captured.
pub(crate) fn logs() -> &'static Logs {
    static INSTALLED: Once = Once::new();
    static LOGS: Logs = Logs {
        records: Mutex::new(Vec::new()),
        hooks: Mutex::new(Vec::new()),
    };
    INSTALLED.call_once(|| {
        log::set_logger(&LOGS).expect("no other logger is installed");
        log::set_max_level(log::LevelFilter::Trace);
    });
    &LOGS
}
