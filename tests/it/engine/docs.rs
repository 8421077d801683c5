//! The documentation is complete and short: every public method has an example, names in the guide exist, and pages
//! keep their limits.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::skipped;

/// The files below `folder` that end in `.rs`.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The public functions of a file, and whether the comment of each has an example.
///
/// Plain `pub` marks the public API: a lint rejects it for items that are not exported.
fn public_functions(text: &str) -> Vec<(&str, bool)> {
    let mut found = Vec::new();
    let mut has_example = false;
    let mut in_attribute = false;
    for line in text.lines().map(str::trim_start) {
        if let Some(name) = line.strip_prefix("pub fn ") {
            let end = name.find(['(', '<']).unwrap_or(name.len());
            found.push((&name[..end], has_example));
        }
        if line.starts_with("///") || line.starts_with("#[") || in_attribute {
            has_example |= line.starts_with("/// ```");
            in_attribute = (line.starts_with("#[") || in_attribute) && !line.ends_with(']');
        } else {
            has_example = false;
        }
    }
    found
}

#[test]
fn every_public_method_has_an_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut method_count, mut without) = (0, Vec::new());
    for path in sources(&root) {
        let text = fs::read_to_string(&path).unwrap();
        for (name, has_example) in public_functions(&text) {
            method_count += 1;
            if !has_example {
                without.push(format!("{} in {}", name, path.display()));
            }
        }
    }
    assert!(
        method_count > 120,
        "only {method_count} public methods are found"
    );
    assert!(without.is_empty(), "without an example: {without:#?}");
}

#[test]
fn the_search_for_examples_finds_what_has_none() {
    let text = "
        /// Has one.
        ///
        /// ```
        /// ```
        #[must_use]
        pub fn one(&self) {}

        /// Has none, below one that has.
        pub fn two<T>() {}

        pub fn three() {}
    ";
    let found = public_functions(text);
    assert_eq!(found, [("one", true), ("two", false), ("three", false)]);
}

/// A renamed file must be renamed in the guide as well.
#[test]
fn files_that_the_guide_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut file_count = 0;
    for page in fs::read_dir(root.join("src/guide")).unwrap() {
        let page = page.unwrap().path();
        if page.is_dir() {
            continue;
        }
        let text = fs::read_to_string(&page).unwrap();
        for name in text.split('`').skip(1).step_by(2) {
            let is_file = [".rs", ".txt", ".md"].iter().any(|end| name.ends_with(end));
            let is_folder = name.ends_with('/') && !name.contains("://");
            if !(is_file || is_folder) || name.contains('<') {
                continue;
            }
            let exists = root.join("src").join(name).exists() || root.join(name).exists();
            assert!(exists, "`{name}` in {}", page.display());
            file_count += 1;
        }
    }
    assert!(file_count > 20, "only {file_count} files");
}

/// The cells of all tables in a page, or in the comments of a source file.
fn cells(text: &str) -> Vec<String> {
    let rows = text
        .lines()
        .map(|line| line.trim_start_matches(['/', '!', ' ']));
    rows.filter(|row| row.starts_with('|'))
        .flat_map(|row| {
            let row = row.replace("\\|", "/");
            row.split('|').map(str::to_owned).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn the_readme_and_the_front_page_have_one_table_of_locks() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rows = |file: &str, links: bool| -> Vec<String> {
        let text = fs::read_to_string(root.join(file)).unwrap();
        let rows = text.lines().map(|line| line.trim_start_matches("//! "));
        let table = rows.skip_while(|row| !row.starts_with("| Take |"));
        let table = table.take_while(|row| row.starts_with('|'));
        let plain = |row: &str| match row.split_once("](").filter(|_| links) {
            Some((code, rest)) => {
                let (_, rest) = rest.split_once(')').unwrap();
                code.replacen('[', "", 1) + rest
            }
            None => row.to_owned(),
        };
        table.map(plain).collect()
    };
    let (readme, front) = (rows("README.md", false), rows("src/lib.rs", true));
    assert!(readme.len() > 12, "{readme:?}");
    assert_eq!(readme, front);
}

/// Text that does not fit into a cell belongs into a paragraph below the table.
#[test]
fn the_guide_is_short_and_so_is_each_cell_of_a_table() {
    const MOST: usize = 12_000;
    const MOST_IN_A_CELL: usize = 40;
    let count = |text: &str| text.split_whitespace().count();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = root.join("src/guide");
    let mut pages: Vec<_> = fs::read_dir(&guide)
        .unwrap()
        .map(|page| page.unwrap().path())
        .filter(|page| page.extension().is_some_and(|extension| extension == "md"))
        .collect();
    let words: usize = pages
        .iter()
        .map(|page| count(&fs::read_to_string(page).unwrap()))
        .sum();
    assert!(words <= MOST, "{words} words in {}", guide.display());

    pages.push(root.join("README.md"));
    pages.extend(sources(&root.join("src")));
    let mut cell_count = 0;
    for page in pages {
        for cell in cells(&fs::read_to_string(&page).unwrap()) {
            let words = count(&cell);
            let page = page.display();
            assert!(words <= MOST_IN_A_CELL, "{words} words in {page}: {cell}");
            cell_count += 1;
        }
    }
    assert!(cell_count > 500, "only {cell_count} cells");
}

/// Each image is a file, and rustdoc, which copies no files, gets it inlined.
#[test]
fn the_images_of_the_guide_exist_and_are_small() {
    const MOST: usize = 20 * 1024;
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide");
    let page = fs::read_to_string(guide.join("performance.md")).unwrap();
    let inlined = fs::read_to_string(guide.join("plots/inlined.md")).unwrap();
    let mut image_count = 0;
    for image in page.split("![").skip(1) {
        let (_, name) = image.split_once("][").unwrap();
        let name = name.split(']').next().unwrap();
        let path = format!("plots/{name}.svg");
        assert!(page.contains(&format!("\n[{name}]: {path}\n")), "{name}");
        let svg = fs::read_to_string(guide.join(&path)).unwrap();
        assert!(svg.len() <= MOST, "{path} has {} bytes", svg.len());
        let text = format!("[{name}]: <data:image/svg+xml,");
        assert!(inlined.contains(&text), "{name} for rustdoc");
        image_count += 1;
    }
    assert!(image_count > 5, "only {image_count} images");
}

/// The output of the compiler for a program that uses the crate; `None` without a compiler.
pub(super) fn compiled(program: &str) -> Option<String> {
    let rustc = std::env::var("RUSTC").unwrap_or("rustc".into());
    compiled_by(&rustc, Path::new("."), program)
}

/// The output of another compiler, whose lints take their settings from `lints`.
pub(super) fn compiled_by(compiler: &str, lints: &Path, program: &str) -> Option<String> {
    let exe = std::env::current_exe().unwrap();
    let deps = exe.parent().unwrap();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libredlatch-") && name.ends_with(".rlib")
    };
    let built = fs::read_dir(deps).unwrap().map(|file| file.unwrap().path());
    let newest = built
        .filter(is_ours)
        .max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap())?;
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("user.rs");
    fs::write(&source, program).unwrap();
    let mut rustc = Command::new(compiler);
    rustc.env("CLIPPY_CONF_DIR", lints);
    rustc.args(["--edition=2024", "--crate-type=lib", "--emit=metadata"]);
    rustc.arg("--extern");
    rustc.arg(format!("redlatch={}", newest.display()));
    rustc.arg("-L").arg(deps).arg("--out-dir").arg(dir.path());
    let said = rustc.arg(source).output().ok()?;
    Some(String::from_utf8(said.stderr).unwrap())
}

#[test]
fn the_compiler_says_that_a_guard_stays_on_its_thread() {
    let sends = |guard| {
        let program = format!(
            "fn sync<T: Sync>() {{}}
            pub fn user(guard: redlatch::{guard}) {{
                sync::<redlatch::{guard}>();
                std::thread::spawn(move || drop(guard));
            }}"
        );
        compiled(&program)
    };
    for guard in [
        "MutexGuard",
        "RwLockReadGuard",
        "MultiLockGuard",
        "RedLockGuard",
    ] {
        let Some(said) = sends(guard) else {
            return skipped("what the compiler says", "there is none");
        };
        let headline = said.lines().next().unwrap_or_default();
        assert!(
            headline.contains("GuardStaysOnItsThreadUnlessTakenByLockOwned")
                && headline.contains("cannot be sent"),
            "{said}"
        );
        assert!(!said.contains("MutexGuard<'static, ()>"), "{said}");
        assert!(!said.contains("shared between threads"), "{said}");
    }
}
