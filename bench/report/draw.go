package report

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"weir.io/weir/lab/record"
)

const (
	width  = 8 * vg.Inch
	height = 4.2 * vg.Inch
)

// palette has colors that color-blind readers can tell apart: Okabe and Ito, "Color Universal
// Design" (2008), without its yellow, which is hard to see on paper. The reference is black and
// dashed.
var palette = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, // blue
	{0xd5, 0x5e, 0x00, 0xff}, // vermillion
	{0x00, 0x9e, 0x73, 0xff}, // bluish green
	{0xcc, 0x79, 0xa7, 0xff}, // reddish purple
	{0xe6, 0x9f, 0x00, 0xff}, // orange
	{0x56, 0xb4, 0xe9, 0xff}, // sky blue
	{0x99, 0x99, 0x99, 0xff}, // gray
	{0x66, 0x33, 0x11, 0xff}, // brown
}

var shapes = []draw.GlyphDrawer{
	draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.PyramidGlyph{},
	draw.RingGlyph{}, draw.BoxGlyph{}, draw.PlusGlyph{}, draw.CrossGlyph{},
}

var dashes = []vg.Length{vg.Points(5), vg.Points(3)}

// svg draws the figure as SVG.
func (f *figure) svg() ([]byte, error) {
	canvas := vgsvg.New(width, height)
	if err := f.draw(draw.New(canvas)); err != nil {
		return nil, err
	}
	var data bytes.Buffer
	_, err := canvas.WriteTo(&data)
	// A reader without these fonts gets others of the same width, not a serif font.
	return bytes.ReplaceAll(data.Bytes(), []byte("font-family:Liberation Sans;"),
		[]byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;")), err
}

// draw draws the figure, with the legend to the right of it.
func (f *figure) draw(canvas draw.Canvas) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = f.title, f.x, f.y
	p.Title.Padding = vg.Points(6)
	legend := plot.NewLegend()
	for _, style := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle,
		&p.X.Tick.Label, &p.Y.Tick.Label, &legend.TextStyle} {
		style.Font.Variant = "Sans"
		style.Font.Size = vg.Points(10)
	}
	legend.Top, legend.Left, legend.Padding = true, true, vg.Points(4)
	p.Add(f.grid())
	f.axes(p)
	for i, s := range f.series {
		if err := f.add(p, &legend, i, s); err != nil {
			return fmt.Errorf("draw %s of %s: %w", s.name, f.name, err)
		}
	}
	if len(f.series) > 1 || f.groups == nil {
		box := legend.Rectangle(canvas)
		legend.Draw(draw.Crop(canvas, width-box.Size().X-vg.Points(20), 0, 0, -vg.Points(24)))
		canvas = draw.Crop(canvas, 0, -box.Size().X-vg.Points(26), 0, 0)
	}
	p.Draw(draw.Crop(canvas, vg.Points(4), -vg.Points(6), vg.Points(4), -vg.Points(4)))
	return nil
}

func (f *figure) grid() plot.Plotter {
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{0xcc}, color.Gray{0xe4}
	if f.groups != nil {
		grid.Vertical.Color = nil
	}
	return grid
}

// axes sets the ranges before series are added, which only widens them: linear axes of values begin
// at 0, so that lengths can be compared.
func (f *figure) axes(p *plot.Plot) {
	_, y := f.spans()
	low, high := f.height(y.low), f.height(y.high)
	p.Y.Min, p.Y.Max = min(low, 0), high*1.05
	if f.logY {
		p.Y.Min, p.Y.Max = math.Floor(low-0.05), high+0.05
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks{log: f.logX}, ticks{log: f.logY}
	if f.groups != nil {
		p.NominalX(f.groups...)
		p.X.Min, p.X.Max = -0.5, float64(len(f.groups))-0.5
		if len(f.groups) > 5 {
			p.X.Tick.Label.Rotation = math.Pi / 6
			p.X.Tick.Label.XAlign = text.XRight
		}
	}
}

// height is where a value is drawn. plot.LogScale is not used: it centers the title of the axis at
// a value, and pads the figure for it.
func (f *figure) height(value float64) float64 {
	if f.logY {
		return math.Log10(value / f.unit)
	}
	return value / f.unit
}

// across is where a value of the condition, or a group, is drawn.
func (f *figure) across(x float64) float64 {
	if f.logX {
		return math.Log10(x)
	}
	return x
}

// add draws one series and names it in the legend.
func (f *figure) add(p *plot.Plot, legend *plot.Legend, i int, s series) error {
	spread := &quartiles{}
	shift := 0.0
	if f.groups != nil {
		shift = (float64(i) - float64(len(f.series)-1)/2) * barWidth(len(f.series))
	}
	for _, at := range s.points {
		median := f.height(at.median)
		spread.XYs = append(spread.XYs, plotter.XY{X: f.across(at.x) + shift, Y: median})
		spread.YErrors = append(spread.YErrors, struct{ Low, High float64 }{
			median - f.height(at.low), f.height(at.high) - median})
	}
	errors, err := plotter.NewYErrorBars(spread)
	if err != nil {
		return err
	}
	colour := f.colour(i)
	if f.groups != nil {
		bars := &bars{spread.XYs, barWidth(len(f.series)), f.logY, colour}
		p.Add(bars)
		if !f.exact {
			p.Add(errors)
		}
		legend.Add(s.name, bars)
		return nil
	}
	line, points, err := plotter.NewLinePoints(spread)
	if err != nil {
		return err
	}
	line.Width, line.Color, points.Color = vg.Points(1.5), colour, colour
	points.Shape, points.Radius = shapes[i%len(shapes)], vg.Points(3)
	errors.Color = colour
	if s.reference {
		line.Dashes = dashes
	}
	p.Add(line, errors, points)
	legend.Add(s.name, line, points)
	return nil
}

// colour is black for the first reference; the others take the palette's colors in turn.
func (f *figure) colour(i int) color.Color {
	if f.series[i].reference && i == 0 {
		return color.Black
	}
	if f.series[0].reference {
		i--
	}
	return palette[i%len(palette)]
}

// quartiles are medians with the middle half around them.
type quartiles struct {
	plotter.XYs
	plotter.YErrors
}

// barWidth is the width of one of n bars of a group, which is 1 wide with its gap.
func barWidth(n int) float64 { return 0.8 / float64(n) }

// bars begin at 0, or at a logarithmic axis, which has no 0; plotter.BarChart cannot do that.
type bars struct {
	tops   plotter.XYs
	width  float64
	log    bool
	colour color.Color
}

// Plot draws the bars.
func (b *bars) Plot(canvas draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&canvas)
	bottom := y(p.Y.Min)
	if !b.log {
		bottom = y(0)
	}
	for _, top := range b.tops {
		left, right := x(top.X-b.width/2), x(top.X+b.width/2)
		canvas.FillPolygon(b.colour, []vg.Point{
			{X: left, Y: bottom}, {X: left, Y: y(top.Y)}, {X: right, Y: y(top.Y)}, {X: right, Y: bottom}})
	}
}

// Thumbnail draws the color.
func (b *bars) Thumbnail(canvas *draw.Canvas) {
	canvas.FillPolygon(b.colour, []vg.Point{canvas.Min, {X: canvas.Min.X, Y: canvas.Max.Y},
		canvas.Max, {X: canvas.Max.X, Y: canvas.Min.Y}})
}

// ticks marks an axis with short numbers: 10k and 1M instead of 1e+06. A logarithmic axis draws
// exponents of ten.
type ticks struct {
	log bool
}

// Ticks returns where the axis is marked.
func (t ticks) Ticks(low, high float64) []plot.Tick {
	if t.log {
		return decades(low, high)
	}
	marks := plot.DefaultTicks{}.Ticks(low, high)
	for i := range marks {
		if marks[i].Label != "" {
			marks[i].Label = shortNumber(marks[i].Value)
		}
	}
	return marks
}

// decades marks 1, 2 and 5 of each decade, and labels all of them only if there are few decades.
func decades(low, high float64) []plot.Tick {
	var marks []plot.Tick
	for decade := math.Floor(low); decade <= high; decade++ {
		for _, digit := range []float64{1, 2, 5} {
			exponent := decade + math.Log10(digit)
			if exponent < low-1e-3 || exponent > high+1e-3 {
				continue
			}
			mark := plot.Tick{Value: exponent}
			if digit == 1 || high-low <= 3 {
				mark.Label = shortNumber(digit * math.Pow(10, decade))
			}
			marks = append(marks, mark)
		}
	}
	return marks
}

func shortNumber(value float64) string {
	divisor, unit := record.Scale(value, "B")
	return strconv.FormatFloat(value/divisor, 'g', 4, 64) + strings.TrimSuffix(unit, "B")
}
