//! What a reader can rely on: every public method has an example, and what the README and the guide name exists.

use std::fs;
use std::path::{Path, PathBuf};

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

/// The public functions in a file, each with whether the comment above it has an example.
///
/// `pub` without a limit is the public API: a lint refuses it for what cannot be reached from outside.
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
            has_example |= line.starts_with("/// ```") || line.contains("::example!(");
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
    let (mut seen, mut without) = (0, Vec::new());
    for path in sources(&root) {
        let text = fs::read_to_string(&path).unwrap();
        for (name, has_example) in public_functions(&text) {
            seen += 1;
            if !has_example {
                without.push(format!("{} in {}", name, path.display()));
            }
        }
    }
    assert!(seen > 120, "only {seen} public methods are found");
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

        /// Made by a macro.
        #[doc = $crate::sync::macros::example!(lock $maker =>
            \"a line\"
        )]
        #[must_use]
        pub fn three(&self) {}
        pub fn four() {}
    ";
    let found = public_functions(text);
    let expected = [
        ("one", true),
        ("two", false),
        ("three", true),
        ("four", false),
    ];
    assert_eq!(found, expected);
}

#[test]
fn what_the_readme_points_to_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let mut seen = 0;
    for link in readme.split("](").skip(1) {
        let link = link.split(')').next().unwrap();
        let (path, heading) = link.split_once('#').unwrap_or((link, ""));
        let text =
            fs::read_to_string(root.join(path)).unwrap_or_else(|err| panic!("{link}: {err}"));
        let is_heading = |line: &str| {
            let title = line.strip_prefix("# ").unwrap_or_default();
            title.to_lowercase().replace(' ', "-") == heading
        };
        assert!(heading.is_empty() || text.lines().any(is_heading), "{link}");
        seen += 1;
    }
    assert!(seen > 5, "only {seen} links");
}

/// Whoever moves a file mends the map.
#[test]
fn files_that_the_guide_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
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
            seen += 1;
        }
    }
    assert!(seen > 20, "only {seen} files");
}

/// An image is a file, and rustdoc, which copies none, has it as text.
#[test]
fn the_images_of_the_guide_exist_and_are_small() {
    const MOST: usize = 20 * 1024;
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide");
    let page = fs::read_to_string(guide.join("performance.md")).unwrap();
    let inlined = fs::read_to_string(guide.join("plots/inlined.md")).unwrap();
    let mut seen = 0;
    for image in page.split("![").skip(1) {
        let (_, name) = image.split_once("][").unwrap();
        let name = name.split(']').next().unwrap();
        let path = format!("plots/{name}.svg");
        assert!(page.contains(&format!("\n[{name}]: {path}\n")), "{name}");
        let svg = fs::read_to_string(guide.join(&path)).unwrap();
        assert!(svg.len() <= MOST, "{path} has {} bytes", svg.len());
        let text = format!("[{name}]: <data:image/svg+xml,");
        assert!(inlined.contains(&text), "{name} for rustdoc");
        seen += 1;
    }
    assert!(seen > 5, "only {seen} images");
}
