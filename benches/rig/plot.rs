//! Curves: their data as CSV, and plots of it as SVG.
//!
//! ```text
//! # title; x title; y title; log or linear
//! threads,redlatch,another
//! 1,14000,9000
//! 2,21000,
//! ```
//!
//! Every column but the first is a line of the plot. An empty cell is a point that was not measured.

use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::{ChartBuilder, Circle, IntoDrawingArea, PathElement, SVGBackend, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, Color, IntoFont, RGBColor, WHITE};

use crate::rig::{is_measuring, significant};

/// The variable that names the folder of the plots' files.
const FOLDER: &str = "REDLATCH_BENCH_PLOTS";

/// A Markdown file that contains all plots for rustdoc, which copies no files.
const INLINED: &str = "inlined.md";

const SIZE: (u32, u32) = (640, 400);

/// The palette of Okabe and Ito, which colour-blind people can tell apart.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

const TEXT: f64 = 16.0;
const TITLE: f64 = 20.0;

/// The greatest width of a letter and the distance between two labels, in pixels.
const LETTER: usize = 7;
const LINE: i32 = 16;

/// The folder of the plots' files: named by the environment, otherwise below `target`. A run that does not measure uses
/// another folder, so that it never overwrites results.
pub(crate) fn folder() -> PathBuf {
    let below = |name: &str| Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name(name);
    let folder = if is_measuring() {
        std::env::var_os(FOLDER).map_or_else(|| below("plots"), PathBuf::from)
    } else {
        below("plots-tried")
    };
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Draws all plots from the CSV files of a folder.
pub(crate) fn draw(folder: &Path) {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap_or_else(|err| panic!("{}: {err}", folder.display()))
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "csv"))
        .collect();
    files.sort();
    let mut inlined = String::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a text");
        let curves = Curves::parse(&text).unwrap_or_else(|| panic!("{}", file.display()));
        let svg = shortened(&curves.svg());
        let name = file.file_stem().expect("a name").display();
        writeln!(inlined, "[{name}]: <data:image/svg+xml,{}>", escaped(&svg)).expect("a string");
        fs::write(file.with_extension("svg"), svg).expect("the folder can be written to");
    }
    fs::write(folder.join(INLINED), inlined).expect("the folder can be written to");
}

/// Leaves out what does not change the picture: attributes that are defaults or stand at the root, and digits behind the
/// second decimal.
fn shortened(svg: &str) -> String {
    const FONT: &str = " font-family=\"sans-serif\"";
    let plain = [FONT, " stroke-width=\"1\"", " fill=\"#000000\""];
    let svg = plain
        .iter()
        .fold(svg.to_owned(), |svg, attribute| svg.replace(attribute, ""));
    let svg = svg.replacen("<svg", &format!("<svg{FONT}"), 1);
    let mut short = String::new();
    let mut decimals = None;
    for c in svg.chars() {
        decimals = match (decimals, c) {
            (None, '.') if short.ends_with(|last: char| last.is_ascii_digit()) => Some(0),
            (Some(so_far), '0'..='9') => Some(so_far + 1),
            _ => None,
        };
        if decimals.is_none_or(|so_far| so_far <= 2) {
            short.push(c);
        }
    }
    short
}

/// Escapes an SVG as the end of a `data:` URL between the angle brackets of Markdown.
fn escaped(svg: &str) -> String {
    let mut url = String::new();
    for byte in svg.bytes() {
        match byte {
            b'\n' => {}
            b'"' => url.push('\''),
            b'<' | b'>' | b'#' | b'%' | b'&' | b'\\' | 0x7f.. | ..0x20 => {
                write!(url, "%{byte:02X}").expect("a string");
            }
            plain => url.push(char::from(plain)),
        }
    }
    url
}

/// The scale of both axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    Log,
    Linear,
}

/// The lines of one plot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Curves {
    title: String,
    x: String,
    y: String,
    scale: Scale,
    /// The name of the x values, then the names of the lines.
    columns: Vec<String>,
    rows: Vec<(f64, Vec<Option<f64>>)>,
}

impl Curves {
    pub(crate) fn new(
        title: impl Into<String>,
        [x, y]: [&str; 2],
        scale: Scale,
        columns: &[&str],
    ) -> Self {
        Self {
            title: title.into(),
            x: x.to_owned(),
            y: y.to_owned(),
            scale,
            columns: columns.iter().map(|&name| name.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds the values of all lines at `x`.
    pub(crate) fn add<const N: usize>(&mut self, x: u32, values: [f64; N]) {
        assert_eq!(N + 1, self.columns.len(), "a value for each line");
        self.rows.push((x.into(), values.map(Some).to_vec()));
    }

    /// Prints the curves, and writes them to a file in the folder.
    pub(crate) fn save(&self, folder: &Path, name: &str) {
        let csv = self.csv();
        println!("\n{csv}");
        let file = folder.join(name).with_extension("csv");
        fs::write(file, csv).expect("the folder can be written to");
    }

    fn csv(&self) -> String {
        let scale = match self.scale {
            Scale::Log => "log",
            Scale::Linear => "linear",
        };
        let mut text = format!("# {}; {}; {}; {scale}\n", self.title, self.x, self.y);
        text += &self.columns.join(",");
        text.push('\n');
        for (x, values) in &self.rows {
            let values = values
                .iter()
                .map(|value| value.map_or(String::new(), short));
            let values: Vec<_> = values.collect();
            writeln!(text, "{x},{}", values.join(",")).expect("a string");
        }
        text
    }

    /// Returns `None` if the text is not such a CSV file.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let heads: Vec<_> = lines.next()?.strip_prefix("# ")?.split("; ").collect();
        let [title, x, y, scale] = heads[..] else {
            return None;
        };
        let scale = match scale {
            "log" => Scale::Log,
            "linear" => Scale::Linear,
            _ => return None,
        };
        let columns: Vec<_> = lines.next()?.split(',').collect();
        let mut curves = Self::new(title, [x, y], scale, &columns);
        for line in lines {
            let (x, values) = line.split_once(',')?;
            let values = values.split(',').map(|cell| match cell.trim() {
                "" => Some(None),
                cell => Some(Some(cell.parse().ok()?)),
            });
            let values: Vec<_> = values.collect::<Option<_>>()?;
            if values.len() + 1 != columns.len() {
                return None;
            }
            curves.rows.push((x.parse().ok()?, values));
        }
        Some(curves)
    }

    fn line(&self, column: usize) -> Vec<(f64, f64)> {
        let points = self.rows.iter();
        points
            .filter_map(|(x, values)| Some((*x, values[column]?)))
            .collect()
    }

    fn svg(&self) -> String {
        let mut svg = String::new();
        self.draw(&mut svg).expect("a string takes everything");
        // Shorten the file: texts need no lines of their own, and many attributes repeat the default.
        let svg = svg.replace(">\n", ">").replace("\n</text>", "</text>");
        svg.replace(" opacity=\"1\"", "").replace("><", ">\n<") + "\n"
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let x = Axis::new(self.scale, self.rows.iter().map(|(x, _)| *x), Ticks::AtData);
        let values = self.rows.iter().flat_map(|(_, values)| values);
        let y = Axis::new(self.scale, values.copied().flatten(), Ticks::Round);
        let names = &self.columns[1..];
        let widest = names.iter().map(String::len).max().unwrap_or(0);

        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", TITLE))
            .margin(8)
            .margin_right(u32::try_from(widest * LETTER + 16)?)
            .x_label_area_size(42)
            .y_label_area_size(70)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .max_light_lines(0)
            .bold_line_style(BLACK.mix(0.12))
            .x_desc(&self.x)
            .y_desc(&self.y)
            .label_style(("sans-serif", TEXT))
            .axis_desc_style(("sans-serif", TEXT))
            .draw()?;

        let mut labels = Vec::new();
        for (column, name) in names.iter().enumerate() {
            let colour = COLOURS[column % COLOURS.len()];
            let points = self.line(column);
            let Some(last) = points.last() else { continue };
            let (right, height) = chart.backend_coord(last);
            labels.push((height, right, name, colour));
            chart.draw_series([PathElement::new(points.clone(), colour.stroke_width(2))])?;
            let dots = points
                .into_iter()
                .map(|at| Circle::new(at, 3, colour.filled()));
            chart.draw_series(dots)?;
        }
        // Lines may end close to each other, so move their labels apart.
        labels.sort_unstable_by_key(|&(height, ..)| height);
        let bottom = i32::try_from(SIZE.1)? - 50 - LINE * i32::try_from(labels.len())?;
        let mut free = 0;
        for (place, (height, right, name, colour)) in (1..).zip(labels) {
            let height = height.max(free).min(bottom + LINE * place);
            free = height + LINE;
            let style = ("sans-serif", TEXT).into_font().color(&colour);
            let style = style.pos(Pos::new(HPos::Left, VPos::Center));
            area.draw(&Text::new(name.as_str(), (right + 8, height), style))?;
        }
        area.present()?;
        Ok(())
    }
}

/// The values that get a tick on an axis.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ticks {
    /// The values of the data, if they are few.
    AtData,
    /// Round numbers, including one at each end of the axis.
    Round,
}

/// Places values along one side of a plot.
struct Axis {
    scale: Scale,
    from: f64,
    until: f64,
    ticks: Vec<f64>,
}

impl Axis {
    /// The greatest number of ticks for which there is space.
    const MOST: usize = 9;

    fn new(scale: Scale, values: impl Iterator<Item = f64>, wanted: Ticks) -> Self {
        // A logarithmic axis has no zero, so zero is drawn at its lower end.
        let mut values: Vec<_> = values
            .filter(|&value| scale == Scale::Linear || value > 0.0)
            .collect();
        values.sort_unstable_by(f64::total_cmp);
        values.dedup();
        let (first, last) = match values[..] {
            [first, .., last] => (first, last),
            [only] if only > 0.0 => (only, only * 2.0),
            _ => (1.0, 10.0),
        };
        let mut ticks = match scale {
            Scale::Linear => linear(last),
            Scale::Log => logarithmic(first, last),
        };
        let (mut from, mut until) = (ticks[0], ticks[ticks.len() - 1]);
        if wanted == Ticks::AtData {
            until = last;
            if scale == Scale::Log {
                from = first;
            }
            if values.len() <= Self::MOST {
                ticks = values;
            }
            ticks.retain(|tick| (from..=until).contains(tick));
        }
        Self {
            scale,
            from,
            until,
            ticks,
        }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (begin, end): (i32, i32)) -> i32 {
        let along = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Log => value.max(self.from).log10(),
        };
        let (from, until) = (along(self.from), along(self.until));
        let part = (along(*value) - from) / (until - from);
        let pixels = (part * f64::from(end - begin)).round();
        #[expect(clippy::cast_possible_truncation, reason = "a plot is small")]
        let pixels = pixels as i32;
        begin + pixels
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.from..self.until
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        number(*value)
    }
}

/// Formats the significant digits, without trailing zeros.
fn short(value: f64) -> String {
    let digits: f64 = significant(value).parse().expect("digits");
    digits.to_string()
}

/// Multiples of a round number, from zero to no less than `last`.
fn linear(last: f64) -> Vec<f64> {
    let step = round_numbers(last / 10.0, last, &[1.0, 2.0, 5.0])
        .into_iter()
        .find(|step| last / step <= 6.0)
        .unwrap_or(last);
    let mut ticks = vec![0.0];
    for n in 1_u32.. {
        let tick = f64::from(n) * step;
        ticks.push(tick);
        if tick >= last {
            break;
        }
    }
    ticks
}

/// Powers of ten, or round numbers if those would be too few, from no more than `first` to no less than `last`.
fn logarithmic(first: f64, last: f64) -> Vec<f64> {
    let fine: &[f64] = if last / first < 500.0 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    let all = round_numbers(first, last, fine);
    let begin = all.iter().rposition(|&tick| tick <= first).unwrap_or(0);
    let end = all.iter().position(|&tick| tick >= last);
    all[begin..=end.unwrap_or(all.len() - 1)].to_vec()
}

/// These multiples of powers of ten, from below `first` to above `last`.
fn round_numbers(first: f64, last: f64, multiples: &[f64]) -> Vec<f64> {
    let (mut power, mut found) = (10_f64.powf(first.log10().floor()), Vec::new());
    while power < last * 10.0 {
        found.extend(multiples.iter().map(|multiple| multiple * power));
        power *= 10.0;
    }
    found
}

/// Formats a number with commas between thousands.
fn number(value: f64) -> String {
    let text = format!("{:.4}", value);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    let (whole, _) = text.split_once('.').unwrap_or((text, ""));
    let mut grouped = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + &text[whole.len()..]
}
