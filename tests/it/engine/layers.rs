//! The layers of `src/`: a file imports only from its own layer or a lower one, and imports form no cycle.
//!
//! Exceptions are listed at the end. A commit may only shorten the lists, since an entry that is no longer needed fails
//! too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The files and folders of `src/` in each layer, from top to bottom.
const LAYERS: [&[&str]; 12] = [
    &["bin"],
    &["lib", "client", "guide", "messages"],
    &["operations", "metrics", "testing"],
    &["sync"],
    &["acquire"],
    &["quorum"],
    &["session"],
    &["hold"],
    &["protocol"],
    &["local"],
    &["net"],
    &[
        "config", "error", "observer", "process", "report", "search", "shown", "stats", "time",
        "verdict",
    ],
];

/// The layer of a module, counted from the top.
fn layer(module: &str) -> Option<usize> {
    let first = module.split("::").next().unwrap_or_default();
    LAYERS.iter().position(|layer| layer.contains(&first))
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading
// ---------------------------------------------------------------------------------------------------------------------

/// The code of a file without comments, the contents of literals, and items for its tests.
fn code_of(text: &str) -> String {
    without_tests(without_comments(text, |_| String::new()))
}

fn without_tests(mut code: String) -> String {
    while let Some(at) = code.find("#[cfg(test)]") {
        let end = at + end_of_item(&code[at..]);
        code.replace_range(at..end, "");
    }
    code
}

/// The code without comments, with `literal` applied to each literal.
fn without_comments(text: &str, literal: impl Fn(&str) -> String) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |at| at + 2)
        } else if rest.starts_with("r\"") || rest.starts_with("r#") && is_raw(rest) {
            let hashes = rest[1..].chars().take_while(|&c| c == '#').count();
            let end = format!("\"{}", "#".repeat(hashes));
            let begin = 1 + hashes + 1;
            rest[begin..]
                .find(&end)
                .map_or(rest.len(), |at| begin + at + end.len())
        } else if c == '"' {
            end_of_quoted(rest, '"')
        } else if c == '\'' && is_char(rest) {
            end_of_quoted(rest, '\'')
        } else {
            0
        };
        if skipped == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            if !rest.starts_with('/') {
                code.push_str(&literal(&rest[..skipped]));
            }
            rest = &rest[skipped..];
        }
    }
    code
}

fn is_raw(text: &str) -> bool {
    text[1..].trim_start_matches('#').starts_with('"')
}

/// Whether this is a character literal, not a lifetime.
fn is_char(text: &str) -> bool {
    let mut after = text.chars().skip(1);
    match after.next() {
        Some('\\') => true,
        Some(_) => after.next() == Some('\''),
        None => false,
    }
}

fn end_of_quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// The end of the first item: a semicolon outside of brackets, or the end of its block.
fn end_of_item(code: &str) -> usize {
    let mut depth = 0_u32;
    for (at, c) in code.char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth = depth.saturating_sub(1);
                if c == '}' && depth == 0 {
                    return at + 1;
                }
            }
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// All paths that begin with `crate` or `super`, anywhere in the code, as segments from the root.
fn paths_in(code: &str, module: &str) -> BTreeSet<Vec<String>> {
    let own_path: Vec<String> = module.split("::").map(str::to_owned).collect();
    let mut paths = BTreeSet::new();
    for (root, base) in [
        ("crate::", &own_path[..0]),
        ("super::", &own_path[..own_path.len() - 1]),
    ] {
        for (at, _) in code.match_indices(root) {
            let char_before = code[..at].chars().next_back();
            if char_before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            read_paths(&code[at + root.len()..], base, &mut paths);
        }
    }
    paths
}

/// Reads one path or a group of paths; returns the rest of the code.
fn read_paths<'a>(code: &'a str, base: &[String], paths: &mut BTreeSet<Vec<String>>) -> &'a str {
    let code = code.trim_start();
    if let Some(mut rest) = code.strip_prefix('{') {
        loop {
            rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix('}') {
                return after;
            }
            if let Some(after) = rest.strip_prefix(',') {
                rest = after;
                continue;
            }
            let code_left = read_paths(rest, base, paths);
            if code_left.len() == rest.len() {
                return code_left; // not a path
            }
            rest = code_left;
        }
    }
    let end = code
        .find(|c: char| !c.is_alphanumeric() && c != '_' && c != '*')
        .unwrap_or(code.len());
    let (segment, rest) = code.split_at(end);
    let mut path = base.to_vec();
    if segment == "super" {
        path.pop();
    } else if segment != "self" && segment != "*" {
        path.push(segment.to_owned());
    }
    if let Some(after) = rest.strip_prefix("::") {
        return read_paths(after, &path, paths);
    }
    paths.insert(path);
    match rest.strip_prefix(" as ") {
        Some(after) => after.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'),
        None => rest,
    }
}

#[test]
fn imports_are_read_wherever_they_are() {
    let text = r##"
        //! crate::in_a_comment
        use crate::alone;
        pub(crate) use crate::{one::{self, Inner as Other, two::*}, three};
        fn f<'a>(x: &'a crate::typed::Thing) -> char {
            crate::report::report!("not {} crate::text", "\" crate::quoted");
            let raw = r#"crate::raw"#; /* crate::block */
            super::beside::call(x);
            '"'
        }
        #[cfg(test)]
        #[expect(dead_code)]
        fn helper() { crate::for_tests() }
        use crate::after;
        #[cfg(test)]
        mod tests {
            use crate::tested;
        }
    "##;
    let paths = paths_in(&code_of(text), "folder::file");
    let paths: Vec<_> = paths.iter().map(|path| path.join("::")).collect();
    let wanted = [
        "after",
        "alone",
        "folder::beside::call",
        "one",
        "one::Inner",
        "one::two",
        "report::report",
        "three",
        "typed::Thing",
    ];
    assert_eq!(paths, wanted);
}

// ---------------------------------------------------------------------------------------------------------------------
// The graph
// ---------------------------------------------------------------------------------------------------------------------

/// Each module (a file) with the modules that it imports.
struct Graph(BTreeMap<String, BTreeSet<String>>);

impl Graph {
    fn of_src() -> Self {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = BTreeMap::new();
        collect(&top, "", &mut files);
        let imports = |module: &String, text: &String| {
            let paths = paths_in(&code_of(text), module);
            let targets = paths.iter().map(|path| owner_of(path, &files));
            targets.filter(|target| target != module).collect()
        };
        Self(
            files
                .iter()
                .map(|(module, text)| (module.clone(), imports(module, text)))
                .collect(),
        )
    }

    fn edges(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter();
        all.flat_map(|(from, targets)| {
            targets
                .iter()
                .map(move |target| (from.as_str(), target.as_str()))
        })
    }

    /// Every module that `module` imports directly or indirectly.
    fn reach(&self, module: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut todo: Vec<_> = self.0[module].iter().collect();
        while let Some(next) = todo.pop() {
            if reached.insert(next.as_str()) {
                todo.extend(&self.0[next]);
            }
        }
        reached
    }

    /// The modules that import themselves through others.
    fn in_circles(&self) -> BTreeSet<&str> {
        let all = self.0.keys().map(String::as_str);
        all.filter(|module| self.reach(module).contains(module))
            .collect()
    }
}

/// Collects the modules in a folder with their texts.
fn collect(folder: &Path, prefix: &str, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            collect(&path, &format!("{prefix}{stem}::"), files);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            let module = match stem.as_str() {
                "mod" => prefix.trim_end_matches("::").to_owned(),
                _ => format!("{prefix}{stem}"),
            };
            files.insert(module, fs::read_to_string(&path).unwrap());
        }
    }
}

/// The module to which a path leads; items of the root belong to `lib`.
fn owner_of(path: &[String], files: &BTreeMap<String, String>) -> String {
    let modules = (1..=path.len()).rev().map(|n| path[..n].join("::"));
    let mut known = modules.filter(|module| files.contains_key(module));
    known.next().unwrap_or_else(|| "lib".to_owned())
}

fn file_of(module: &str) -> String {
    let path = format!("src/{}", module.replace("::", "/"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(&path);
    if folder.is_dir() {
        format!("{path}/mod.rs")
    } else {
        format!("{path}.rs")
    }
}

/// Fails unless the findings are exactly those of the list.
#[track_caller]
fn compare(complaint: &str, found: &BTreeSet<String>, listed: &[&str]) {
    let known: BTreeSet<String> = listed.iter().map(|&entry| entry.to_owned()).collect();
    let new: Vec<_> = found.difference(&known).collect();
    let gone: Vec<_> = known.difference(found).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "{complaint}: {new:#?}\nnot found any more, remove from the list: {gone:#?}"
    );
    assert_eq!(known.len(), listed.len(), "listed twice");
}

#[test]
fn every_file_has_a_layer() {
    let graph = Graph::of_src();
    let without: Vec<_> = graph
        .0
        .keys()
        .filter(|file| layer(file).is_none())
        .collect();
    assert!(without.is_empty(), "in no layer: {without:?}");
    assert!(graph.0.len() > 30, "{}", graph.0.len());
}

#[test]
fn imports_point_down() {
    let graph = Graph::of_src();
    let upward = |(from, target): &(&str, &str)| layer(from) > layer(target);
    let found = graph
        .edges()
        .filter(upward)
        .map(|(from, target)| format!("{} -> crate::{target}", file_of(from)))
        .collect();
    compare("imported from a higher layer", &found, UPWARD);
}

#[test]
fn imports_run_in_no_circle() {
    let graph = Graph::of_src();
    let found = graph.in_circles().into_iter().map(file_of).collect();
    compare("in a circle of imports", &found, IN_CIRCLES);
}

// ---------------------------------------------------------------------------------------------------------------------
// Error codes
// ---------------------------------------------------------------------------------------------------------------------

/// Error codes that decide whether, when and where a request is sent again, with their names in the client crate.
const CODES: [(&str, &str); 12] = [
    ("NOSCRIPT", "NoScript"),
    ("MOVED", "Moved"),
    ("ASK", "Ask"),
    ("TRYAGAIN", "TryAgain"),
    ("CLUSTERDOWN", "ClusterDown"),
    ("LOADING", "BusyLoading"),
    ("MASTERDOWN", "MasterDown"),
    ("READONLY", "ReadOnly"),
    ("BUSY", ""),
    ("MISCONF", ""),
    ("OOM", ""),
    ("NOREPLICAS", ""),
];

/// Files that contain only tests.
const TESTS: [&str; 6] = ["golden", "model", "schedules", "search", "strange", "tests"];

/// The codes that occur in a file's code: at the beginning of a literal, or by name.
fn codes_in(text: &str) -> Vec<&'static str> {
    // Remove the characters that would end an item.
    let kept = |literal: &str| literal.replace(['{', '}', '(', ')', '[', ']', ';', '#'], " ");
    let code = without_tests(without_comments(text, kept));
    let stands = |needle: &str| {
        let mut places = code.match_indices(needle);
        places.any(|(at, _)| !code[at + needle.len()..].starts_with(char::is_alphanumeric))
    };
    let is_used = |(code, name): &(&str, &str)| {
        stands(&format!("\"{code}"))
            || stands(&format!("\"-{code}"))
            || !name.is_empty() && stands(&format!("ServerErrorKind::{name}"))
    };
    let used = CODES.into_iter().filter(is_used);
    used.map(|(code, _)| code).collect()
}

#[test]
fn codes_are_found_wherever_they_are() {
    let text = r#"
        // "MOVED" in a comment
        fn f(err: &RedisError) -> bool {
            let (busy, key) = ("BUSY", "OOMPH");
            matches!(err.kind(), ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::Asked))
                || text.starts_with("-LOADING ") || busy == "}" || err.code() == Some("MISCONF")
        }
        #[cfg(test)]
        mod tests {
            const TESTED: &str = "ASK";
        }
    "#;
    assert_eq!(codes_in(text), ["LOADING", "READONLY", "BUSY", "MISCONF"]);
}

#[test]
fn one_file_says_what_the_error_codes_of_redis_mean() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = BTreeMap::new();
    collect(&top, "", &mut files);
    let mut found = BTreeSet::new();
    for (module, text) in &files {
        let file = module.rsplit("::").next().unwrap_or_default();
        if module != "verdict" && !TESTS.contains(&file) {
            let codes = codes_in(text).into_iter();
            found.extend(codes.map(|code| format!("{}: {code}", file_of(module))));
        }
    }
    compare(
        "a code that only src/verdict.rs may know",
        &found,
        WITH_CODES,
    );
}

// ---------------------------------------------------------------------------------------------------------------------
// Exceptions
// ---------------------------------------------------------------------------------------------------------------------

const UPWARD: &[&str] = &[
    // Strange texts for tests of all layers.
    "src/config/server/tests.rs -> crate::net::strange",
    "src/config/tests.rs -> crate::net::strange",
    // Real requests, whose replies are judged.
    "src/verdict/tests.rs -> crate::net::request",
    "src/verdict/tests.rs -> crate::net::slot",
];

const IN_CIRCLES: &[&str] = &[];

const WITH_CODES: &[&str] = &[];
