package config

import (
	"encoding"
	"errors"
	"net/netip"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"weir.io/weir/internal/model"
)

// text decodes a scalar into something that reads itself from text.
func (d *decoder) text(n ast.Node, to encoding.TextUnmarshaler, at *path) {
	text, ok := "", true
	switch node := n.(type) {
	case *ast.StringNode:
		text = node.Value
	case *ast.IntegerNode:
		text = node.Token.Value
	case *ast.FloatNode:
		text = node.Token.Value
	default:
		ok = false
	}
	if _, isPort := to.(*model.PortRange); isPort && !ok {
		d.fail(n, at, "is %s; write one port, a range (8000-8100) or all, and a service for each of several ports", kindOf(n))
		return
	}
	if !ok {
		d.fail(n, at, "is %s, not text%s", kindOf(n), asText(n, at))
		return
	}
	if text == "" {
		d.fail(n, at, "is empty")
		return
	}
	if err := unmarshalText(text, to); err != nil {
		d.fail(n, at, "%v", err)
		if unknown := (*model.UnknownName)(nil); errors.As(err, &unknown) {
			d.fix(unknown.Meant)
		}
	}
}

// unmarshalText words the errors of net/netip for people who do not program.
func unmarshalText(text string, to encoding.TextUnmarshaler) error {
	switch to := to.(type) {
	case *netip.Addr:
		if err := to.UnmarshalText([]byte(text)); err != nil {
			return errors.New(strconv.Quote(text) + " is not an IP address" + insteadOfAddress(text))
		}
		return nil
	case *netip.AddrPort:
		if err := to.UnmarshalText([]byte(text)); err != nil {
			return errors.New(strconv.Quote(text) + ` is not an address and port, as 10.0.0.2:6083 or [2001:db8::2]:6083`)
		}
		return nil
	case *netip.Prefix:
		if host, err := netip.ParseAddr(text); err == nil {
			*to = netip.PrefixFrom(host, host.BitLen())
			return nil
		}
		if err := to.UnmarshalText([]byte(text)); err != nil {
			return errors.New(strconv.Quote(text) + " is not an IP address or prefix (10.0.0.0/24)")
		}
		return nil
	}
	return to.UnmarshalText([]byte(text))
}

// insteadOfAddress says how an address is written that has more to it.
func insteadOfAddress(text string) string {
	if p, err := netip.ParsePrefix(text); err == nil {
		return "; write " + p.Addr().String() + ", without the length"
	}
	if a, err := netip.ParseAddrPort(text); err == nil {
		return "; write " + a.Addr().String() + ", a port has a key of its own"
	}
	return ""
}

// scalar decodes a scalar into a string, truth value or number.
func (d *decoder) scalar(n ast.Node, v reflect.Value, at *path) {
	switch v.Kind() {
	case reflect.String:
		d.str(n, v, at)
	case reflect.Bool:
		node, ok := n.(*ast.BoolNode)
		if !ok {
			d.fail(n, at, "is %s, not true or false", kindOf(n))
			return
		}
		v.SetBool(node.Value)
	default:
		d.number(n, v, at)
	}
}

func (d *decoder) str(n ast.Node, v reflect.Value, at *path) {
	switch node := n.(type) {
	case *ast.StringNode:
		v.SetString(node.Value)
	case *ast.LiteralNode:
		v.SetString(node.Value.Value)
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		d.fail(n, at, "is %s, not text; for text write %q", kindOf(n), nameOf(n))
	default:
		d.fail(n, at, "is %s, not text%s", kindOf(n), asText(n, at))
	}
}

// number decodes a whole number. Decimal only: YAML readers disagree about what
// 0100 is.
func (d *decoder) number(n ast.Node, v reflect.Value, at *path) {
	_, isInteger := n.(*ast.IntegerNode)
	text := nameOf(n)
	digits := strings.TrimLeft(text, "-")
	switch {
	case !isInteger:
		d.fail(n, at, "is %s, not a whole number", kindOf(n))
		return
	case strings.Trim(digits, "0123456789") != "" || len(digits) > 1 && digits[0] == '0':
		d.fail(n, at, "%s is not written as a decimal number", text)
		return
	}
	bits := v.Type().Bits()
	value, err := strconv.ParseUint(text, 10, bits)
	if err != nil {
		d.fail(n, at, "%s is out of range 0 to %d", text, uint64(1)<<(bits-1)<<1-1)
		return
	}
	v.SetUint(value)
}
