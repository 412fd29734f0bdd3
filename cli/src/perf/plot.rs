//! A drawing of the report: a bar of goodness for each test and size, and a line at 1.

use std::fmt::Write;

use super::report::{Row, size_text};

const BAR: usize = 16;
const GAP: usize = 6;
const LABELS: f64 = 330.0;
const SCALE: f64 = 520.0;
const RIGHT: f64 = 110.0;
const TOP: usize = 64;

/// The SVG text for all rows that have a goodness.
pub(crate) fn svg(rows: &[Row]) -> String {
    let bars: Vec<(&Row, f64)> = rows
        .iter()
        .filter_map(|row| Some((row, row.goodness?.median)))
        .filter(|(_, g)| g.is_finite())
        .collect();
    let most = bars.iter().map(|(_, g)| *g).fold(1.2, f64::max).min(2.0);
    let x = |goodness: f64| LABELS + SCALE * goodness.clamp(0.0, most) / most;
    let groups = bars.chunk_by(|a, b| group(a.0) == group(b.0)).count();
    let bottom = TOP + bars.len() * (BAR + GAP) + groups * GAP;
    let (width, height) = (LABELS + SCALE + RIGHT, bottom + 34);
    let mut out = String::new();
    let mut put = |text: std::fmt::Arguments<'_>| {
        // Writing into a String cannot fail.
        let _ = writeln!(out, "{text}");
    };
    put(format_args!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">"#
    ));
    put(format_args!(r##"<rect width="{width}" height="{height}" fill="#ffffff"/>"##));
    put(format_args!(r##"<text x="16" y="24" font-size="16" fill="#111111">transom perf: goodness</text>"##));
    put(format_args!(
        r##"<text x="16" y="44" fill="#555555">1 is the baseline written by hand, more is better; the thin line spans p10 to p90</text>"##
    ));
    for tick in 0..=(most * 4.0) as usize {
        let value = tick as f64 / 4.0;
        let at = x(value);
        put(format_args!(r##"<path d="M{at:.1} {TOP}V{bottom}" stroke="#e4e4e4"/>"##));
        put(format_args!(
            r##"<text x="{at:.1}" y="{}" text-anchor="middle" fill="#555555">{value}</text>"##,
            bottom + 18
        ));
    }
    let mut y = TOP;
    for bars in bars.chunk_by(|a, b| group(a.0) == group(b.0)) {
        y += GAP;
        for (row, goodness) in bars {
            let colour = if *goodness >= 0.95 {
                "#2f7d4f"
            } else if *goodness >= 0.8 {
                "#c98a1b"
            } else {
                "#b3403a"
            };
            let (middle, text) = (y + BAR / 2, y + BAR - 4);
            let label = format!("{} {} {}", row.test, row.transport, size_text(row.size));
            let beside = row.baseline.as_deref().unwrap_or("none");
            put(format_args!(
                r##"<text x="{:.1}" y="{text}" text-anchor="end" fill="#111111">{} <tspan fill="#777777">/ {}</tspan></text>"##,
                LABELS - 8.0,
                escape(&label),
                escape(beside)
            ));
            put(format_args!(
                r#"<rect x="{LABELS}" y="{y}" width="{:.1}" height="{BAR}" fill="{colour}"/>"#,
                x(*goodness) - LABELS
            ));
            if let Some(spread) = row.goodness {
                put(format_args!(
                    r##"<path d="M{:.1} {middle}H{:.1}" stroke="#333333" stroke-width="1.5"/>"##,
                    x(spread.p10),
                    x(spread.p90)
                ));
            }
            put(format_args!(
                r##"<text x="{:.1}" y="{text}" fill="#111111">{goodness:.2}</text>"##,
                LABELS + SCALE + 12.0
            ));
            y += BAR + GAP;
        }
    }
    put(format_args!(r##"<path d="M{:.1} {TOP}V{bottom}" stroke="#111111" stroke-width="1.5"/>"##, x(1.0)));
    put(format_args!("</svg>"));
    out
}

fn group(row: &Row) -> (&str, &str) {
    (&row.test, &row.transport)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::row;
    use super::*;

    #[test]
    fn every_row_with_a_goodness_has_a_bar_and_labels_are_escaped() {
        let mut odd = row("a<b", 4096, 0.5);
        odd.baseline = Some("x & y".into());
        let text = svg(&[row("put_flush", 8, 1.0), odd, Row { goodness: None, ..row("c", 8, 1.0) }]);
        assert_eq!(text.matches(r#"height="16""#).count(), 2);
        assert!(text.contains("a&lt;b shm 4K") && text.contains("x &amp; y"));
        assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
    }

    #[test]
    fn a_report_without_rows_is_still_a_drawing() {
        assert!(svg(&[]).ends_with("</svg>\n"));
    }
}
